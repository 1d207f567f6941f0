"""A version is proven once; loading does not keep the CPU from the batches."""

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from doubles.backbones import tiny_backbone
from doubles.refusals import raises
from doubles.tasks import publish_tiny_task, tiny_task
from nunatak_contract.manifest import TaskManifest
from nunatak_model import Row, embedding_branch
from nunatak_model.ops.attention import Attention, attention_by_runs
from nunatak_model.ops.choice import Ops
from nunatak_registry import Registry
from nunatak_server.engine.backbones import Backbones
from nunatak_server.engine.compute import BatchCompute
from nunatak_server.residency.loading import LoadThrottle, VersionLoader
from nunatak_server.residency.resident_set import HostTier


@pytest.fixture(name="two_threads", autouse=True)
def compute_on_two_threads() -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


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

    monkeypatch.setattr("nunatak_versions.loading.run_probe", prove)
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
