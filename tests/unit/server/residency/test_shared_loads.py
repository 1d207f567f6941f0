import asyncio

import pytest
import torch

from doubles.events import logged_events
from doubles.leases import lease, names, settle, use
from doubles.refusals import raises
from doubles.serving import FakeStore, ManualClock, RecordingObserver, make_residency
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_registry import CorruptBlobError
from nunatak_server.errors import EngineFailedError, OutOfMemoryError, TaskUnhealthyError
from nunatak_server.residency.residency import FAILURE_MEMORY_S, Lease, Residency
from nunatak_versions import LoadedTask


async def test_many_requests_for_a_cold_version_load_it_once(store: FakeStore) -> None:
    reference = store.add("tone")
    residency = make_residency(store)

    leases = await asyncio.gather(*(lease(residency, store, reference) for _ in range(20)))

    assert store.loaded == ["tone/1"]
    assert all(each.task is leases[0].task for each in leases)
    with raises("task_in_use", match="20 requests"):
        residency.evict("tone")


async def test_a_version_that_came_meanwhile_is_not_loaded_again_under_those_who_use_it(
    store: FakeStore,
) -> None:
    residency = make_residency(store)
    held = await lease(residency, store, store.add("tone"))

    await residency.bring(held.task.manifest)

    assert store.loaded == ["tone/1"]
    with raises("task_in_use", match="1 request"):
        residency.evict("tone")
    held.release()
    assert residency.evict("tone") == (1,)


async def test_waiters_for_a_load_are_counted_until_its_end(store: FakeStore) -> None:
    residency = make_residency(store)
    store.may_load.clear()
    waiting = list[int]()
    tone, mood, spam = map(store.add, ("tone", "mood", "spam"))
    leases = list[asyncio.Task[Lease]]()
    for reference in (tone, mood, spam, tone):
        leases.append(asyncio.create_task(lease(residency, store, reference)))
        await settle()
        waiting.append(residency.num_waiting_for_loads)
    leases.pop(1).cancel()
    await settle()
    waiting.append(residency.num_waiting_for_loads)
    store.may_load.set()
    await asyncio.gather(*leases)

    assert waiting == [1, 2, 3, 4, 3]
    assert residency.num_waiting_for_loads == 0


async def test_a_waiter_that_gives_up_leaves_the_load_to_the_others(store: FakeStore) -> None:
    reference = store.add("tone")
    residency = make_residency(store)
    store.may_load.clear()
    first = asyncio.create_task(lease(residency, store, reference))
    second = asyncio.create_task(lease(residency, store, reference))
    await settle()

    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    store.may_load.set()

    assert (await second).task.manifest.reference == "tone/1"
    assert store.loaded == ["tone/1"]


async def test_a_load_that_nobody_waits_for_any_more_never_starts(store: FakeStore) -> None:
    residency = make_residency(store)
    store.may_load.clear()
    running = [
        asyncio.create_task(lease(residency, store, store.add(task))) for task in ("one", "two")
    ]
    await settle()
    left = asyncio.create_task(lease(residency, store, store.add("left")))
    kept = asyncio.create_task(lease(residency, store, store.add("kept")))
    await settle()

    left.cancel()
    await asyncio.wait([left])
    store.may_load.set()
    await asyncio.gather(*running, kept)

    assert sorted(store.loaded) == ["kept/1", "one/1", "two/1"]


async def test_a_failed_load_fails_its_waiters_and_nobody_else(store: FakeStore) -> None:
    broken, sound = store.add("broken"), store.add("sound")
    store.broken["broken/1"] = CorruptBlobError("0" * 64, "is missing")
    observer = RecordingObserver()
    residency = make_residency(store, observer=observer)

    first, second, third = await asyncio.gather(
        lease(residency, store, broken),
        lease(residency, store, broken),
        lease(residency, store, sound),
        return_exceptions=True,
    )

    assert isinstance(first, CorruptBlobError)
    assert isinstance(second, CorruptBlobError)
    assert isinstance(third, Lease)
    assert sorted(store.loaded) == ["broken/1", "sound/1"]
    assert sorted(observer.loads) == [("broken", False), ("sound", True)]
    assert observer.num_waits == 3
    assert names(residency) == ["sound/1"]


async def test_a_failed_load_costs_no_other_version_its_place(store: FakeStore) -> None:
    residency = make_residency(store, room_for=1)
    await use(residency, store, store.add("good"))
    store.broken["bad/1"] = CorruptBlobError("0" * 64, "is missing")

    with pytest.raises(CorruptBlobError):
        await lease(residency, store, store.add("bad"))

    assert names(residency) == ["good/1"]
    await use(residency, store, store.add("next"))
    assert names(residency) == ["next/1"]


async def test_a_failure_is_remembered_for_a_moment_but_not_for_a_preload(store: FakeStore) -> None:
    reference = store.add("tone")
    store.broken["tone/1"] = CorruptBlobError("0" * 64, "is missing")
    clock = ManualClock()
    residency = make_residency(store, clock=clock)
    for _ in range(3):
        with pytest.raises(CorruptBlobError):
            await lease(residency, store, reference)
    assert store.loaded == ["tone/1"]
    with pytest.raises(CorruptBlobError):
        await residency.preload(store.manifests[reference])
    assert store.loaded == ["tone/1"] * 2

    del store.broken["tone/1"]
    clock.now += FAILURE_MEMORY_S

    assert (await lease(residency, store, reference)).task.manifest.task == "tone"


async def test_a_device_lost_during_a_load_is_reported_before_the_waiters_and_blames_no_task(
    store: FakeStore,
) -> None:
    reference, fatal = store.add("tone"), list[EngineFailedError]()
    store.broken["tone/1"] = torch.AcceleratorError("device-side assert")
    residency = make_residency(store, fatal=fatal)

    async def wait() -> list[EngineFailedError]:
        with pytest.raises(EngineFailedError):
            await lease(residency, store, reference)
        return list(fatal)

    with logged_events() as events:
        found = await asyncio.gather(wait(), wait())

    assert [len(told) for told in found] == [1, 1]
    (event,) = events.named(f"cannot load tone/1: {fatal[0]}")
    assert event["level"] == "critical"


FULL = torch.AcceleratorError("CUDA error: out of memory")


@pytest.mark.parametrize(
    ("error", "raised", "place"),
    [
        (CorruptBlobError("ab" * 32, "is gone"), CorruptBlobError, ""),
        (FULL, OutOfMemoryError, "AcceleratorError"),
        (OSError("swordfish"), TaskUnhealthyError, "OSError"),
        (RuntimeError("swordfish"), TaskUnhealthyError, "RuntimeError"),
    ],
    ids=["foreseen", "memory", "unforeseen", "unforeseen-in-a-forward"],
)
async def test_the_log_says_why_a_load_fails_with_the_place_of_what_nobody_foresaw_and_no_words(
    store: FakeStore, error: Exception, raised: type[NunatakError], place: str
) -> None:
    fatal = list[EngineFailedError]()
    residency = make_residency(store, fatal=fatal)
    reference = store.add("tone")
    store.broken["tone/1"] = error

    with logged_events() as events, pytest.raises(raised) as failure:
        await lease(residency, store, reference)

    (event,) = events.named(f"cannot load tone/1: {failure.value}")
    assert event.get("exception", "").rpartition("\n")[2] == place
    assert "swordfish" not in "".join(events.lines)
    assert not fatal


class FullDevice:
    """Loads of `tone` find no memory as long as `blocker` is held."""

    residency: Residency

    def __init__(self, store: FakeStore, blocker: str) -> None:
        self._load, self._blocker = store.load, blocker
        self.attempts = list[str]()

    def __call__(self, manifest: TaskManifest) -> LoadedTask:
        self.attempts.append(manifest.task)
        held = {it.manifest.task for it in self.residency.resident()}
        if manifest.task == "tone" and self._blocker in held:
            raise torch.OutOfMemoryError("no room for a page of slots")
        return self._load(manifest)


@pytest.mark.parametrize("is_in_use", [False, True])
async def test_a_load_without_memory_evicts_what_is_free_and_is_tried_once_more(
    store: FakeStore, *, is_in_use: bool
) -> None:
    device = FullDevice(store, "mood")
    store.load = device  # pyrefly: ignore[method-assign] - the store is a double
    residency = device.residency = make_residency(store)
    held = await lease(residency, store, store.add("mood"))
    await use(residency, store, store.add("spam"))
    if not is_in_use:
        held.release()

    if is_in_use:
        with pytest.raises(OutOfMemoryError):
            await lease(residency, store, store.add("tone"))
        assert names(residency) == ["mood/1"]
    else:
        await use(residency, store, store.add("tone"))
        assert names(residency) == ["tone/1"]
    assert device.attempts == ["mood", "spam", "tone", "tone"]
