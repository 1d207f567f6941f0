"""The assembly of a server's parts."""

import asyncio
import logging
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from doubles.backbones import save_tiny_backbone, tiny_backbone
from doubles.refusals import raises
from doubles.serving import make_settings
from doubles.serving_kernels import banks_of, with_gpu_kernels
from doubles.tasks import publish_tiny_task, random_branch
from nunatak_contract.methods import Bottleneck, HeadOnly, Lora, TopK
from nunatak_model import Backbone, Branch, Row, convert_branch
from nunatak_registry import Registry
from nunatak_server.catalog.following import HoldRenewal, RegistryWatch
from nunatak_server.engine import backbones
from nunatak_server.engine.backbones import Backbones, load_on_own_thread, load_serving_backbone
from nunatak_server.engine.compute import BatchCompute
from nunatak_server.engine.engine import Engine
from nunatak_server.errors import EngineFailedError
from nunatak_server.residency.loading import LoadThrottle
from nunatak_server.residency.residency import Residency
from nunatak_server.runtime import Runtime
from nunatak_server.scheduler.admission import State


@contextmanager
def runtime_of(
    folder: Path,
    backbone: Backbone,
    *,
    on_fatal: Callable[[EngineFailedError], None] = lambda _: None,
    **changes: object,
) -> Generator[Runtime]:
    with Registry.open(folder) as registry:
        yield Runtime(
            settings=make_settings(registry=str(folder), **changes),
            backbones=Backbones(backbone),
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


async def test_the_first_batch_of_a_device_with_fast_kernels_mixes_tasks_of_many_methods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = list[list[Branch]]()
    compute = BatchCompute.__call__

    def note(self: BatchCompute, rows: Sequence[Row], **options: object) -> list[list[float]]:
        batches.append([row.branch for row in rows])
        return compute(self, rows, **options)  # pyrefly: ignore[bad-argument-type]

    monkeypatch.setattr(BatchCompute, "__call__", note)
    backbone = with_gpu_kernels(tiny_backbone())
    with runtime_of(tmp_path, backbone) as runtime:
        await runtime.start()
        await asyncio.wait_for(runtime.aclose(), 20)

    methods = [type(branch.spec.method) for branch in batches[0]]
    assert set(methods) == {HeadOnly, Lora, Bottleneck, TopK}
    assert len(set(batches[0])) == 2 * len(set(methods))
    batches.clear()
    assert banks_of(backbone).num_bytes() == 0


def test_the_thread_that_loads_the_backbone_has_ended_before_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, computed = save_tiny_backbone(tmp_path), list[threading.Thread]()

    def pack(backbone: Backbone) -> Backbone:
        computed.append(threading.current_thread())
        return backbone

    monkeypatch.setattr(backbones, "pack_backbone", pack)

    load_on_own_thread(make_settings(backbone=str(folder), device="cpu"))

    assert [it.is_alive() for it in computed] == [False]


@pytest.mark.parametrize("kernels", ["auto", "plain"])
def test_plain_kernels_are_torchs_own_operations_alone(
    tmp_path: Path, kernels: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_tiny_backbone(tmp_path)
    settings = make_settings(backbone=str(folder), device="cpu", kernels=kernels)

    with caplog.at_level(logging.INFO):
        backbone = load_serving_backbone(settings)

    # Where nunatak-ops is installed, `auto` has its operators as well.
    names = backbone.fast_kernels
    assert names[:1] == (("packed_weights",) if kernels == "auto" else ())
    assert backbone.is_packed == (kernels == "auto")
    said = [it.getMessage() for it in caplog.records]
    (line,) = [it for it in said if it.startswith(f"serving {backbone.name} on cpu in float32")]
    assert line.endswith(f"fast kernels: {', '.join(names) or 'none'}")


async def test_pages_of_slots_are_limited_by_the_budget_of_task_versions(tmp_path: Path) -> None:
    backbone = with_gpu_kernels(tiny_backbone())
    branch = random_branch(backbone, HeadOnly())

    with runtime_of(tmp_path, backbone, task_memory_bytes=1):
        held = convert_branch(branch, backbone)

    assert banks_of(backbone).num_bytes() == held.num_bytes
