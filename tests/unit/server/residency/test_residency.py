"""What is in memory: remembered uses, the host, loads without room, and reused numbers."""

import asyncio

from doubles.drafts import make_draft
from doubles.leases import lease, names, settle, until, use
from doubles.refusals import raises
from doubles.serving import FakeStore, make_residency
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_server.residency.residency import Residency
from nunatak_server.residency.resident_set import MIN_HALF_LIFE, HostTier, UseHistory, VersionKey

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
