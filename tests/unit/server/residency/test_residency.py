"""What is in memory: uses, the host, and loads that are shared, fail or find no room."""

import asyncio

import pytest
import torch

from doubles.drafts import make_draft
from doubles.events import logged_events
from doubles.leases import lease, names, settle, until, use
from doubles.refusals import raises
from doubles.serving import FakeStore, ManualClock, RecordingObserver, make_residency
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_registry import CorruptBlobError
from nunatak_server.errors import EngineFailedError, OutOfMemoryError, TaskUnhealthyError
from nunatak_server.residency.residency import FAILURE_MEMORY_S, Lease, Residency
from nunatak_server.residency.resident_set import MIN_HALF_LIFE, HostTier, UseHistory, VersionKey
from nunatak_versions import LoadedTask

DATA = b"0123456789"


def key(task: str, version: int = 1) -> VersionKey:
    return VersionKey(task, version, "")


class FakeBlobs:
    """Returns ten bytes for every version, and counts the reads."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __call__(self, manifest: TaskManifest) -> bytes:
        self.read.append(manifest.version)
        return DATA


def version(number: int) -> TaskManifest:
    draft, _ = make_draft(seed=number)
    return TaskManifest(**draft.model_dump(), version=number)


async def fill(store: FakeStore, residency: Residency) -> None:
    """Lease half of ten places for good."""
    store.sizes |= {"hot": 5, "large": 6, "larger": 7}
    await lease(residency, store, store.add("hot"))


TONE = TaskReference(task="tone", version=1)


def restore(store: FakeStore) -> None:
    """Give the number of the version other content."""
    store.add("tone", seed=99)


def test_a_count_halves_within_a_half_life_of_uses_of_others() -> None:
    history = UseHistory()
    for _ in range(4):
        history.record(key("old"))
    before = history.count(key("old"))

    for _ in range(MIN_HALF_LIFE):
        history.record(key("new"))

    assert history.count(key("old")) == before / 2


def test_the_least_used_are_forgotten_when_there_are_too_many() -> None:
    history = UseHistory(max_versions=10)
    for _ in range(5):
        history.record(key("hot"))

    for version in range(100):
        history.record(key("stream", version))

    known = [version for version in range(100) if history.count(key("stream", version))]
    assert len(known) < 10
    assert history.count(key("hot")) > 3


def test_the_budget_holds_and_the_least_recently_read_goes_first() -> None:
    blobs = FakeBlobs()
    tier = HostTier(blobs, budget_bytes=20)

    for number in (1, 2, 1, 3, 1, 2):
        tier.read(version(number))

    assert blobs.read == [1, 2, 3, 2]
    stats = tier.stats()
    assert (stats.bytes, stats.blobs, stats.hits, stats.misses) == (20, 2, 2, 4)


def test_a_budget_of_nothing_holds_nothing() -> None:
    blobs = FakeBlobs()
    tier = HostTier(blobs, budget_bytes=0)

    tier.read(version(1))
    tier.read(version(1))

    assert blobs.read == [1, 1]
    assert tier.stats().bytes == 0


async def test_what_has_room_passes_a_load_that_waits_for_some_without_end(
    store: FakeStore,
) -> None:
    residency = make_residency(store, room_for=10, patience_s=0)
    await fill(store, residency)
    large, larger = (
        asyncio.create_task(residency.preload(store.manifests[store.add(task)]))
        for task in ("large", "larger")
    )
    # A load requested at the same moment is delayed, but not for long.
    one = asyncio.create_task(residency.lease(store.manifests[store.add("one")]))
    await asyncio.sleep(0)
    assert store.loaded == ["hot/1"]
    (await one).release()
    (await lease(residency, store, store.add("two"))).release()

    assert not large.done()
    assert not larger.done()
    assert names(residency) == ["hot/1", "one/1", "two/1"]
    large.cancel()
    larger.cancel()


async def test_nothing_passes_a_load_that_has_just_begun_to_wait(store: FakeStore) -> None:
    residency = make_residency(store, room_for=10)
    await fill(store, residency)
    large = asyncio.create_task(residency.preload(store.manifests[store.add("large")]))
    await settle()
    small = asyncio.create_task(lease(residency, store, store.add("small")))
    await settle()

    assert store.loaded == ["hot/1"]
    large.cancel()
    await small
    assert names(residency) == ["hot/1", "small/1"]


async def test_a_load_that_was_passed_is_the_next_once_it_has_room(store: FakeStore) -> None:
    residency = make_residency(store, room_for=10, patience_s=0)
    store.sizes |= {"hot": 5, "large": 6, "even": 6}
    held = await lease(residency, store, store.add("hot"))
    large = asyncio.create_task(residency.preload(store.manifests[store.add("large")]))
    await settle()
    (await lease(residency, store, store.add("small"))).release()
    even = asyncio.create_task(lease(residency, store, store.add("even")))
    await settle()

    held.release()
    await large

    assert store.loaded[:3] == ["hot/1", "small/1", "large/1"]
    await even


async def test_a_load_under_way_is_not_shared_by_two_contents_of_a_number(store: FakeStore) -> None:
    store.add("tone")
    residency = make_residency(store)
    store.may_load.clear()
    first = asyncio.create_task(lease(residency, store, TONE))
    await settle()
    former = store.manifests[TONE]
    restore(store)
    second = asyncio.create_task(lease(residency, store, TONE))
    await settle()
    store.may_load.set()

    assert (await first).task.manifest == former
    assert (await second).task.manifest == store.manifests[TONE]


async def test_a_failure_is_not_remembered_for_another_content(store: FakeStore) -> None:
    store.add("tone")
    residency = make_residency(store)
    store.broken["tone/1"] = NunatakError(
        "probe_failed", reference="tone/1", number=0, reason="other logits"
    )
    with raises("probe_failed"):
        await lease(residency, store, TONE)
    store.broken.clear()
    with raises("probe_failed"):
        await lease(residency, store, TONE)
    restore(store)

    assert (await lease(residency, store, TONE)).task.manifest == store.manifests[TONE]


async def test_what_the_registry_does_not_name_leaves_memory_pinned_or_not(
    store: FakeStore,
) -> None:
    references = [store.add(task) for task in ("gone", "kept", "tone", "used")]
    residency = make_residency(store)
    await use(residency, store, *references)
    await residency.pin(store.manifests[TONE])
    in_use = await lease(residency, store, references[3])
    restore(store)
    for reference in (references[0], references[3]):
        del store.manifests[reference]
        del store.manifests[TaskReference(task=reference.task, version=1)]

    await residency.drop_unnamed(store.resolve)

    assert names(residency) == ["kept/1", "used/1"]
    assert residency.stats().pinned_bytes == 0
    in_use.release()
    await until(lambda: names(residency) == ["kept/1"])


async def test_a_registry_that_cannot_be_read_takes_nothing_from_memory(store: FakeStore) -> None:
    residency = make_residency(store)
    await use(residency, store, store.add("tone"))
    store.is_down = True

    await residency.drop_unnamed(store.resolve)

    assert names(residency) == ["tone/1"]


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
