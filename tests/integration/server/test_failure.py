import asyncio
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from doubles.access import add_key
from doubles.backbones import tiny_backbone
from doubles.serving import make_settings
from doubles.tasks import publish_tiny_task
from nunatak_contract.methods import Method, TopK
from nunatak_registry import Registry
from nunatak_server.access.keys import KeyAuthenticator
from nunatak_server.app import create_app
from nunatak_server.engine.backbones import Backbones

PREDICT = "/v1/tasks/tone/predict"


@pytest.fixture
def registry(tmp_path: Path) -> Generator[Registry]:
    method: Method = TopK(num_layers=1)
    with Registry.open(tmp_path) as opened:
        publish_tiny_task(opened, tiny_backbone(), method=method)
        yield opened


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
