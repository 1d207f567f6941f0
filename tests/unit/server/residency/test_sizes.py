import asyncio

import pytest
import torch

from doubles.backbones import tiny_backbone
from doubles.tasks import tiny_task
from nunatak_contract.enums import TensorDtype
from nunatak_contract.manifest import TaskManifest
from nunatak_server.residency import loading
from nunatak_server.residency.loading import MemoryReturn
from nunatak_server.residency.resident_set import (
    free_memory,
    host_memory_budget,
    size_in_memory,
    task_memory_budget,
    trunk_cache_budget,
)
from nunatak_versions import load_task

CPU = torch.device("cpu")


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


async def test_memory_goes_back_once_after_much_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "INTERVAL_S", 0.01)
    returned, calls = asyncio.Event(), list[None]()
    loop = asyncio.get_running_loop()

    def give_back() -> None:
        calls.append(None)
        loop.call_soon_threadsafe(returned.set)

    later = MemoryReturn(give_back)
    later.after_batch(None)
    await later.start()
    assert len(calls) == 1
    returned.clear()

    for _ in range(3):
        later.soon()
        await asyncio.to_thread(later.after_batch, None)
    await returned.wait()
    assert len(calls) == 2

    later.soon()
    later.close()
    await asyncio.sleep(0.05)
    assert len(calls) == 2


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
