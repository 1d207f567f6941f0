"""The assembly of a server's parts."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from doubles.backbones import tiny_backbone
from doubles.refusals import raises
from doubles.serving import make_settings
from doubles.tasks import publish_tiny_task
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.engine.engine import Engine
from nunatak_server.errors import EngineFailedError
from nunatak_server.following import HoldRenewal, RegistryWatch
from nunatak_server.readiness import State
from nunatak_server.residency.loads import LoadThrottle
from nunatak_server.residency.residency import Residency
from nunatak_server.runtime import Runtime


@contextmanager
def runtime_of(
    folder: Path,
    backbone: Backbone,
    *,
    on_fatal: Callable[[EngineFailedError], None] = lambda _: None,
) -> Generator[Runtime]:
    with Registry.open(folder) as registry:
        yield Runtime(
            settings=make_settings(registry=str(folder)),
            backbone=backbone,
            registry=registry,
            on_fatal=on_fatal,
        )


@pytest.mark.parametrize(("rows", "waiting"), [(0, 0), (0, 1), (1, 1), (2, 1), (2, 3), (1, 0)])
def test_loads_give_way_to_more_texts_than_wait_for_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, rows: int, waiting: int
) -> None:
    monkeypatch.setattr(Engine, "num_rows", rows)
    monkeypatch.setattr(Residency, "num_waiting_for_loads", waiting)

    with runtime_of(tmp_path, tiny_backbone()) as runtime:
        assert runtime.should_throttle_loads() == (rows > waiting)
        monkeypatch.setattr(Backbone, "device", torch.device("meta"))
        assert not runtime.should_throttle_loads()


def test_what_is_read_from_the_store_is_read_with_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = list[LoadThrottle]()

    def note_pause(throttle: LoadThrottle) -> None:
        pauses.append(throttle)

    monkeypatch.setattr(LoadThrottle, "__call__", note_pause)

    with runtime_of(tmp_path, tiny_backbone()) as runtime:
        manifest = publish_tiny_task(runtime.registry, runtime.backbone)
        runtime.host_tier.read(manifest)

    assert len(pauses) == 1


@pytest.mark.parametrize("broken", [RegistryWatch, HoldRenewal])
async def test_a_server_that_follows_the_registry_no_more_is_not_ready_and_has_stopped_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: type
) -> None:
    running, failed = set[type](), asyncio.Event()

    async def run(self: RegistryWatch | HoldRenewal) -> None:
        if isinstance(self, broken):
            await asyncio.sleep(0)
            raise ZeroDivisionError
        running.add(type(self))
        try:
            await asyncio.Event().wait()
        finally:
            running.remove(type(self))

    async def serve(runtime: Runtime) -> None:
        await runtime.start()
        await failed.wait()
        assert runtime.readiness.state is State.FAILED
        assert not running
        await runtime.aclose()

    monkeypatch.setattr(RegistryWatch, "run", run)
    monkeypatch.setattr(HoldRenewal, "run", run)
    with runtime_of(tmp_path, tiny_backbone(), on_fatal=lambda _: failed.set()) as runtime:
        await asyncio.wait_for(serve(runtime), 20)


async def test_a_backbone_that_computes_nothing_finite_is_reported_at_the_start(
    tmp_path: Path,
) -> None:
    async def serve(runtime: Runtime) -> None:
        with raises("backbone_unhealthy", match=r"^the backbone gives outputs that are"):
            await runtime.start()
        await runtime.aclose()

    backbone = tiny_backbone()
    for parameter in backbone.parameters.values():
        parameter.fill_(torch.nan)
    with runtime_of(tmp_path, backbone) as runtime:
        await asyncio.wait_for(serve(runtime), 20)
