"""A version is proven once; loading does not keep the CPU from the batches."""

import asyncio
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
import torch

from doubles.backbones import tiny_backbone
from doubles.refusals import raises
from doubles.tasks import publish_tiny_task, tiny_task
from nunatak_contract.enums import TensorDtype
from nunatak_contract.manifest import TaskManifest
from nunatak_model import Row, embedding_branch
from nunatak_model.ops.attention import Attention, attention_by_runs
from nunatak_model.ops.choice import Ops
from nunatak_registry import Registry
from nunatak_server.engine.backbones import Backbones
from nunatak_server.engine.compute import BatchCompute
from nunatak_server.residency import resident_set
from nunatak_server.residency.loading import MAX_REST_S, LoadThrottle, VersionLoader
from nunatak_server.residency.resident_set import (
    HostTier,
    MemoryReturn,
    free_memory,
    host_memory_budget,
    size_in_memory,
    task_memory_budget,
    trunk_cache_budget,
)
from nunatak_versions import load_task

CPU = torch.device("cpu")


@pytest.fixture(name="two_threads", autouse=True)
def compute_on_two_threads() -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@dataclass
class Load:
    """A load thread that counts work and rest separately."""

    worked_s: float = 0.0
    rests: list[float] = field(default_factory=list[float])

    def throttle(self, is_wanted: Callable[[], bool] = lambda: True) -> LoadThrottle:
        return LoadThrottle(is_wanted, rest=self.rests.append, worked=lambda: self.worked_s)


def test_a_load_computes_on_its_own_thread_alone_and_gives_way_between_its_parts(
    tmp_path: Path,
) -> None:
    backbone, pauses = tiny_backbone(), list[int]()

    def rest(_seconds: float) -> None:
        pauses.append(torch.get_num_threads())

    throttle = LoadThrottle(lambda: True, rest=rest)
    with Registry.open(tmp_path) as registry, ThreadPoolExecutor(1) as threads:
        manifest = publish_tiny_task(registry, backbone)
        read = partial(registry.read_blob, pause=throttle)
        load = VersionLoader(Backbones(backbone), HostTier(read, budget_bytes=0), throttle=throttle)

        task = threads.submit(load, manifest).result()

    assert task.manifest == manifest
    # Pauses after check, build and conversion; a tiny version has less than a megabyte.
    assert pauses == [1, 1, 1]
    assert torch.get_num_threads() == 2


def test_a_version_is_validated_once_between_any_other_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone, proven = tiny_backbone(), list[str]()

    def prove(manifest: TaskManifest, *_: object, **__: object) -> None:
        proven.append(manifest.reference)

    monkeypatch.setattr("nunatak_versions.versions.run_probe", prove)
    with Registry.open(tmp_path) as registry:
        load = loading_of(registry, Backbones(backbone))
        versions = [publish_tiny_task(registry, backbone, seed=seed) for seed in (1, 2)]
        for manifest in (*versions, *versions):
            assert load(manifest).manifest == manifest

    assert proven == ["tone/1", "tone/2"]


def test_a_version_that_fails_its_probe_is_refused_however_often_it_is_asked(
    tmp_path: Path,
) -> None:
    backbone = tiny_backbone()
    draft, blobs = tiny_task(backbone)
    other = draft.probe.model_copy(update={"logits": ((9.0, 9.0, 9.0),) * 2})
    with Registry.open(tmp_path) as registry:
        load = loading_of(registry, Backbones(backbone))
        good = registry.publish(draft, blobs)
        bad = registry.publish(draft.model_copy(update={"probe": other}), blobs)

        for _ in range(2):
            load(good)
            with raises("probe_failed"):
                load(bad)


class BreakingKernel:
    """A fast attention that a test breaks."""

    def __init__(self) -> None:
        self.is_broken = False
        self.num_failures = 0

    def __call__(self, lengths: Sequence[int], device: torch.device) -> Attention:
        if self.is_broken:
            self.num_failures += 1
            raise RuntimeError("no kernel image is available for execution on the device")
        return attention_by_runs(lengths, device)


@pytest.mark.parametrize("finds_out", ["batch", "load"])
def test_a_kernel_that_fails_once_serves_neither_batches_nor_loads(
    tmp_path: Path, finds_out: str
) -> None:
    plain, kernel = tiny_backbone(), BreakingKernel()
    backbones = Backbones(replace(plain, ops=Ops(attention=kernel)))
    compute = BatchCompute(backbones.default, in_use=backbones.in_use(backbones.default))
    (encoding,) = plain.tokenizer.encode(["hello"], max_length=16)
    rows = [Row(encoding=encoding, branch=embedding_branch(plain))]
    with Registry.open(tmp_path) as registry:
        load = loading_of(registry, backbones)
        first, *others = (publish_tiny_task(registry, plain, seed=seed) for seed in (1, 2, 3))
        load(first)
        expected = compute(rows)
        kernel.is_broken = True

        found = [compute(rows)] if finds_out == "batch" else []
        loaded = [load(it).manifest for it in others]
        found.append(compute(rows))

    assert loaded == others
    assert all(it == expected for it in found)
    assert kernel.num_failures == 1


def loading_of(registry: Registry, backbones: Backbones) -> VersionLoader:
    host_tier = HostTier(registry.read_blob, budget_bytes=0)
    return VersionLoader(backbones, host_tier, throttle=LoadThrottle(lambda: False))


def test_each_piece_of_a_load_is_followed_by_a_rest_in_proportion_that_is_never_long() -> None:
    load, is_wanted = Load(worked_s=100.0), [True, True, False, True]
    throttle = load.throttle(lambda: is_wanted.pop(0))

    throttle()
    load.worked_s += 50.0
    throttle.begin()
    for piece_s in (0.002, 0.005, 1.0, 60.0):
        load.worked_s += piece_s
        throttle()

    assert load.rests == pytest.approx([0.004, 0.01, MAX_REST_S])


def test_threads_rest_for_their_own_work() -> None:
    load = Load()
    throttle = load.throttle()
    throttle.begin()
    load.worked_s += 0.003

    def load_nothing() -> None:
        throttle.begin()
        throttle()

    with ThreadPoolExecutor(1) as other:
        other.submit(load_nothing).result()
    throttle()

    assert load.rests == pytest.approx([0.0, 0.006])


def test_a_version_never_takes_more_than_was_foreseen_nor_much_less() -> None:
    backbone = tiny_backbone()
    draft, blobs = tiny_task(backbone)
    manifest = TaskManifest(**draft.model_dump(), version=1)

    foreseen = size_in_memory(manifest, dtype=backbone.dtype)

    taken = load_task(manifest, blobs["parameters"], backbone).num_bytes
    assert taken <= foreseen <= taken + 8192


def test_the_size_follows_the_number_formats() -> None:
    draft, _ = tiny_task(tiny_backbone())
    stored = TaskManifest(**draft.model_dump(), version=1)
    half = stored.model_copy(update={"dtype": TensorDtype.BFLOAT16})
    whole = size_in_memory(stored, dtype=torch.float32)

    assert size_in_memory(stored, dtype=torch.bfloat16) == whole // 2
    assert size_in_memory(half, dtype=torch.float32) == whole * 2
    quantized = [stored.backbone.digest]
    assert size_in_memory(stored, dtype=torch.bfloat16, quantized=quantized) == whole


async def test_memory_goes_back_once_after_much_work_and_at_once_if_the_process_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resident_set, "INTERVAL_S", 0.01)
    returned, calls = asyncio.Event(), list[None]()
    loop = asyncio.get_running_loop()

    def give_back() -> None:
        calls.append(None)
        loop.call_soon_threadsafe(returned.set)

    size = 0
    later = MemoryReturn(give_back, lambda: size)
    later.after_batch(None)
    await later.start()
    assert len(calls) == 1
    returned.clear()

    for _ in range(3):
        later.soon()
        await asyncio.to_thread(later.after_batch, None)
    await returned.wait()
    assert len(calls) == 2

    returned.clear()
    later.soon()
    later.close()
    await asyncio.sleep(0.05)
    assert len(calls) == 2

    monkeypatch.setattr(resident_set, "CHECKS", 10**6)
    monkeypatch.setattr(resident_set, "MOST_GROWTH_BYTES", 2**22)
    later = MemoryReturn(give_back, lambda: size)
    await later.start()
    assert len(calls) == 3
    later.soon()
    await asyncio.sleep(0.05)
    assert len(calls) == 3
    returned.clear()
    size = 2**22 + 1
    await returned.wait()
    assert len(calls) == 4
    await asyncio.sleep(0.05)
    assert len(calls) == 4
    later.close()


def test_the_trunk_cache_takes_a_part_of_the_backbones_in_all_processes_together() -> None:
    assert trunk_cache_budget(7, 10**9, processes=4) == 7
    assert trunk_cache_budget(0, 10**9, processes=1) == 0
    assert trunk_cache_budget(None, 10**9, processes=1) == 250_000_000
    assert trunk_cache_budget(None, 10**9, processes=4) * 4 == 250_000_000
    assert trunk_cache_budget(None, 1, processes=1) == 2**24


def test_a_chosen_budget_is_taken_and_else_a_share_of_what_is_free() -> None:
    assert task_memory_budget(123, CPU) == 123
    assert 0 < task_memory_budget(None, CPU) < free_memory(CPU)


def test_the_host_tier_is_off_where_the_device_is_the_host() -> None:
    assert host_memory_budget(None, CPU) == 0
    assert host_memory_budget(77, CPU) == 77
    assert host_memory_budget(0, torch.device("cuda")) == 0
    assert host_memory_budget(None, torch.device("cuda")) > 0
