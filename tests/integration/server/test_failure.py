import asyncio
import dataclasses
from collections.abc import Generator
from pathlib import Path
from typing import ClassVar

import httpx
import pytest
import torch

from doubles.access import add_key
from doubles.backbones import OddLayers, tiny_backbone
from doubles.serving import make_settings, running_client
from doubles.tasks import publish_tiny_task
from nunatak_contract.methods import Method, TopK
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.access.keys import KeyAuthenticator
from nunatak_server.app import create_app
from nunatak_server.engine.backbones import Backbones

PREDICT = "/v1/tasks/tone/predict"


class FragileLayers(OddLayers):
    """The layers of a backbone on a device that can be lost."""

    __slots__ = ()
    is_lost: ClassVar[bool] = False

    def before_each(self) -> None:
        if FragileLayers.is_lost:
            raise torch.AcceleratorError("device-side assert triggered")


@pytest.fixture
def backbone() -> Generator[Backbone]:
    sound = tiny_backbone()
    yield dataclasses.replace(sound, layers=FragileLayers(sound.layers))
    FragileLayers.is_lost = False


@pytest.fixture
def registry(tmp_path: Path) -> Generator[Registry]:
    method: Method = TopK(num_layers=1)
    with Registry.open(tmp_path) as opened:
        publish_tiny_task(opened, tiny_backbone(), method=method)
        yield opened


async def test_a_lost_device_turns_readiness_off_at_once(
    backbone: Backbone, registry: Registry
) -> None:
    async with running_client(backbone, registry) as client:
        assert (await client.post(PREDICT, json={"inputs": "x"})).status_code == 200

        FragileLayers.is_lost = True
        answers = await asyncio.gather(
            *(client.post(PREDICT, json={"inputs": "x"}) for _ in range(5))
        )
        ready = await client.get("/readyz")

        assert {answer.status_code for answer in answers} == {503}
        assert {answer.json()["code"] for answer in answers} == {"not_ready"}
        assert (ready.status_code, ready.json()["code"]) == (503, "not_ready")
        assert (await client.get("/livez")).status_code == 200


async def test_a_server_that_no_longer_reads_its_keys_lets_nobody_in(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, may_break = asyncio.Event(), asyncio.Event()

    async def break_off(_: KeyAuthenticator) -> None:
        await may_break.wait()
        raise ZeroDivisionError

    monkeypatch.setattr(KeyAuthenticator, "run", break_off)
    path = tmp_path / "keys.json"
    key = add_key(path, "one")
    app = create_app(
        make_settings(api_keys_file=path),
        backbones=Backbones(tiny_backbone()),
        registry=registry,
        on_fatal=lambda _: failed.set(),
    )
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client,
    ):
        before = await client.post(PREDICT, json={"inputs": "x"}, headers=key)
        may_break.set()
        await asyncio.wait_for(failed.wait(), 20)
        after = await client.post(PREDICT, json={"inputs": "x"}, headers=key)
        ready = await client.get("/readyz")

    assert before.status_code == 200
    assert (after.status_code, after.json()["code"]) == (503, "not_ready")
    assert ready.status_code == 503
