import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from doubles.backbones import tiny_backbone
from doubles.serving import FakeStore, ManualClock, RecordingObserver, make_residency
from doubles.tasks import random_parameters, spec_of
from nunatak_model import Branch, HeadOnly, build_branch
from nunatak_registry import CorruptBlobError, TaskNotFoundError, TaskReference
from nunatak_server.errors import (
    DrainingError,
    TaskDoesNotFitError,
    TaskInUseError,
    TaskPinnedError,
    TaskUnhealthyError,
)
from nunatak_server.residency.loads import FAILURE_MEMORY_S
from nunatak_server.residency.residency import Lease, Residency


@pytest.fixture(scope="module")
def branch() -> Branch:
    backbone = tiny_backbone(num_layers=1)
    spec = spec_of(backbone, HeadOnly(), num_labels=2)
    return build_branch(spec, backbone.config, random_parameters(spec, backbone, seed=0))


@pytest.fixture
def store(branch: Branch) -> FakeStore:
    return FakeStore(branch)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario that ends by itself within seconds, or fail."""
    asyncio.run(asyncio.wait_for(scenario, timeout=30))


async def lease(residency: Residency, reference: TaskReference) -> Lease:
    return await residency.lease(await residency.resolve(reference))


async def use(residency: Residency, *references: TaskReference) -> None:
    for reference in references:
        (await lease(residency, reference)).release()


async def settle() -> None:
    """Let everything run that can run without a thread."""
    for _ in range(10):
        await asyncio.sleep(0)


def names(residency: Residency) -> list[str]:
    return [task.manifest.reference for task in residency.resident()]


def test_many_requests_for_a_cold_version_load_it_once(store: FakeStore) -> None:
    async def scenario() -> None:
        reference = store.add("tone")
        residency = make_residency(store)

        leases = await asyncio.gather(*(lease(residency, reference) for _ in range(20)))

        assert store.loaded == ["tone/1"]
        assert all(each.task is leases[0].task for each in leases)
        with pytest.raises(TaskInUseError, match="20 requests"):
            residency.evict("tone")
        await residency.aclose()

    run(scenario())


def test_a_waiter_that_gives_up_leaves_the_load_to_the_others(store: FakeStore) -> None:
    async def scenario() -> None:
        reference = store.add("tone")
        residency = make_residency(store)
        store.may_load.clear()
        first = asyncio.create_task(lease(residency, reference))
        second = asyncio.create_task(lease(residency, reference))
        await settle()

        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        store.may_load.set()

        assert (await second).task.manifest.reference == "tone/1"
        assert store.loaded == ["tone/1"]
        await residency.aclose()

    run(scenario())


def test_waiters_that_all_give_up_leave_no_lease(store: FakeStore) -> None:
    async def scenario() -> None:
        residency = make_residency(store)
        reference = store.add("tone")
        store.may_load.clear()
        waiting = [asyncio.create_task(lease(residency, reference)) for _ in range(3)]
        await settle()
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)

        store.may_load.set()
        await use(residency, reference)

        assert residency.evict("tone") == (1,)
        await residency.aclose()

    run(scenario())


def test_a_load_that_nobody_waits_for_any_more_never_starts(store: FakeStore) -> None:
    async def scenario() -> None:
        residency = make_residency(store)
        store.may_load.clear()
        running = [
            asyncio.create_task(lease(residency, store.add(task))) for task in ("one", "two")
        ]
        await settle()
        left = asyncio.create_task(lease(residency, store.add("left")))
        kept = asyncio.create_task(lease(residency, store.add("kept")))
        await settle()

        left.cancel()
        await asyncio.wait([left])
        store.may_load.set()
        await asyncio.gather(*running, kept)

        assert sorted(store.loaded) == ["kept/1", "one/1", "two/1"]
        await residency.aclose()

    run(scenario())


def test_a_load_that_hangs_disturbs_no_other_task(store: FakeStore) -> None:
    async def scenario() -> None:
        slow, quick = store.add("slow"), store.add("quick")
        residency = make_residency(store)
        await use(residency, quick)
        store.may_load.clear()
        hanging = asyncio.create_task(lease(residency, slow))
        await settle()

        found = residency.lease_resident(store.manifests[quick])

        assert found is not None
        assert not hanging.done()
        store.may_load.set()
        await hanging
        await residency.aclose()

    run(scenario())


def test_a_failed_load_fails_its_waiters_and_nobody_else(store: FakeStore) -> None:
    async def scenario() -> None:
        broken, sound = store.add("broken"), store.add("sound")
        store.broken["broken/1"] = CorruptBlobError("0" * 64, "is missing")
        observer = RecordingObserver()
        residency = make_residency(store, observer=observer)

        first, second, third = await asyncio.gather(
            lease(residency, broken),
            lease(residency, broken),
            lease(residency, sound),
            return_exceptions=True,
        )

        assert isinstance(first, CorruptBlobError)
        assert isinstance(second, CorruptBlobError)
        assert isinstance(third, Lease)
        assert sorted(store.loaded) == ["broken/1", "sound/1"]
        assert sorted(observer.loads) == [False, True]
        assert observer.num_waits == 3
        assert names(residency) == ["sound/1"]
        await residency.aclose()

    run(scenario())


def test_a_failed_load_costs_no_other_version_its_place(store: FakeStore) -> None:
    async def scenario() -> None:
        residency = make_residency(store, room_for=1)
        await use(residency, store.add("good"))
        store.broken["bad/1"] = CorruptBlobError("0" * 64, "is missing")

        with pytest.raises(CorruptBlobError):
            await lease(residency, store.add("bad"))

        assert names(residency) == ["good/1"]
        await use(residency, store.add("next"))
        assert names(residency) == ["next/1"]
        await residency.aclose()

    run(scenario())


def test_a_failure_is_remembered_for_a_moment_and_then_tried_again(store: FakeStore) -> None:
    async def scenario() -> None:
        reference = store.add("tone")
        store.broken["tone/1"] = CorruptBlobError("0" * 64, "is missing")
        clock = ManualClock()
        residency = make_residency(store, clock=clock)
        for _ in range(3):
            with pytest.raises(CorruptBlobError):
                await lease(residency, reference)
        assert store.loaded == ["tone/1"]

        del store.broken["tone/1"]
        clock.now += FAILURE_MEMORY_S

        assert (await lease(residency, reference)).task.manifest.task == "tone"
        await residency.aclose()

    run(scenario())


def test_preload_tries_again_at_once(store: FakeStore) -> None:
    async def scenario() -> None:
        reference = store.add("tone")
        store.broken["tone/1"] = CorruptBlobError("0" * 64, "is missing")
        residency = make_residency(store)
        with pytest.raises(CorruptBlobError):
            await lease(residency, reference)

        del store.broken["tone/1"]
        loaded = await residency.preload(store.manifests[reference])

        assert residency.resident() == (loaded,)
        await residency.aclose()

    run(scenario())


def test_an_unforeseen_failure_of_a_load_is_the_failure_of_that_task(store: FakeStore) -> None:
    async def scenario() -> None:
        reference = store.add("tone")
        store.broken["tone/1"] = MemoryError()
        residency = make_residency(store)

        with pytest.raises(TaskUnhealthyError, match="MemoryError"):
            await lease(residency, reference)
        await residency.aclose()

    run(scenario())


def test_a_leased_version_cannot_be_evicted(store: FakeStore) -> None:
    async def scenario() -> None:
        reference = store.add("tone")
        observer = RecordingObserver()
        residency = make_residency(store, observer=observer)
        first = await lease(residency, reference)
        second = await lease(residency, reference)

        with pytest.raises(TaskInUseError, match="2 requests"):
            residency.evict("tone")
        first.release()
        first.release()
        with pytest.raises(TaskInUseError, match="1 request"):
            residency.evict("tone")
        second.release()

        assert residency.evict("tone") == (1,)
        assert residency.lease_resident(store.manifests[reference]) is None
        assert observer.num_evicted == 1
        await residency.aclose()

    run(scenario())


def test_evicting_a_task_drops_all_its_versions_or_none(store: FakeStore) -> None:
    async def scenario() -> None:
        residency = make_residency(store)
        used = await lease(residency, store.add("tone", version=1))
        store.add("tone", version=2)
        await use(residency, TaskReference(task="tone", version=2), store.add("other"))

        with pytest.raises(TaskInUseError, match="tone/1"):
            residency.evict("tone")
        assert len(residency.resident()) == 3
        used.release()
        assert residency.evict("tone", 2) == (2,)
        assert residency.evict("tone", 2) == ()
        assert residency.evict("tone") == (1,)
        assert names(residency) == ["other/1"]
        await residency.aclose()

    run(scenario())


def test_a_load_waits_for_room_until_a_lease_ends(store: FakeStore) -> None:
    async def scenario() -> None:
        residency = make_residency(store, room_for=1)
        used = await lease(residency, store.add("used"))
        waiting = asyncio.create_task(lease(residency, store.add("cold")))
        await settle()
        assert (store.loaded, names(residency)) == (["used/1"], ["used/1"])

        used.release()

        assert (await waiting).task.manifest.task == "cold"
        assert names(residency) == ["cold/1"]
        await residency.aclose()

    run(scenario())


def test_more_versions_than_fit_are_served_one_after_the_other(store: FakeStore) -> None:
    async def scenario() -> None:
        observer = RecordingObserver()
        residency = make_residency(store, room_for=3, observer=observer)
        references = [store.add(f"task-{index}") for index in range(12)]
        peak = 0

        async def ask(reference: TaskReference) -> None:
            nonlocal peak
            leased = await lease(residency, reference)
            peak = max(peak, len(residency.resident()))
            await asyncio.sleep(0)
            leased.release()

        await asyncio.gather(*(ask(each) for each in references * 3))

        assert peak <= 3
        assert len(residency.resident()) <= 3
        assert observer.num_evicted == len(store.loaded) - len(residency.resident())
        await residency.aclose()

    run(scenario())


def test_a_load_that_waits_when_the_server_ends_is_refused(store: FakeStore) -> None:
    async def scenario() -> None:
        residency = make_residency(store, room_for=1)
        used = await lease(residency, store.add("used"))
        waiting = asyncio.create_task(lease(residency, store.add("cold")))
        await settle()

        await residency.aclose()

        with pytest.raises(DrainingError):
            await waiting
        used.release()

    run(scenario())


def test_a_version_just_preloaded_is_not_the_first_to_go(store: FakeStore) -> None:
    async def scenario() -> None:
        residency = make_residency(store, room_for=2)
        await residency.preload(store.manifests[store.add("new")])
        await residency.preload(store.manifests[store.add("new")])
        await use(residency, store.add("one"), store.add("two"), store.add("three"))

        assert "new/1" in names(residency)
        await residency.aclose()

    run(scenario())


def test_a_version_that_can_never_fit_is_refused_with_what_it_needs(store: FakeStore) -> None:
    async def scenario() -> None:
        residency = make_residency(store, room_for=0)

        with pytest.raises(TaskDoesNotFitError) as refusal:
            await lease(residency, store.add("huge"))

        assert refusal.value.needed_bytes == store.branch.num_bytes
        assert refusal.value.budget_bytes == 0
        assert store.loaded == []
        await residency.aclose()

    run(scenario())


def test_a_pinned_version_stays_until_it_is_unpinned(store: FakeStore) -> None:
    async def scenario() -> None:
        residency = make_residency(store, room_for=2)
        pinned = store.manifests[store.add("pinned")]
        await residency.pin(pinned)
        others = [store.add("one"), store.add("two"), store.add("three")]
        await use(residency, *others)

        assert names(residency) == ["pinned/1", "three/1"]
        with pytest.raises(TaskPinnedError):
            residency.evict("pinned")
        assert residency.unpin("pinned") == (1,)
        assert residency.unpin("pinned") == ()
        assert residency.evict("pinned") == (1,)
        await residency.aclose()

    run(scenario())


def test_what_does_not_fit_beside_pinned_versions_is_refused(store: FakeStore) -> None:
    async def scenario() -> None:
        residency = make_residency(store, room_for=1)
        cold = store.add("cold")
        await residency.pin(store.manifests[store.add("pinned")])

        with pytest.raises(TaskDoesNotFitError, match="pinned"):
            await lease(residency, cold)
        residency.unpin("pinned")

        await use(residency, cold)
        assert names(residency) == ["cold/1"]
        await residency.aclose()

    run(scenario())


def test_a_load_that_waits_is_refused_when_its_room_is_pinned(store: FakeStore) -> None:
    async def scenario() -> None:
        residency = make_residency(store, room_for=1)
        reference = store.add("used")
        used = await lease(residency, reference)
        waiting = asyncio.create_task(lease(residency, store.add("cold")))
        await settle()

        await residency.pin(store.manifests[reference])
        used.release()

        with pytest.raises(TaskDoesNotFitError):
            await waiting
        await residency.aclose()

    run(scenario())


def test_a_reference_is_looked_up_once_until_the_registry_changes(store: FakeStore) -> None:
    async def scenario() -> None:
        reference = store.add("tone", version=1)
        residency = make_residency(store)
        await use(residency, reference, reference)
        assert store.num_resolved == 1

        store.add("tone", version=2)
        residency.invalidate()

        assert residency.known(reference) is None
        assert (await lease(residency, reference)).task.manifest.version == 2
        assert names(residency) == ["tone/1", "tone/2"]
        await residency.aclose()

    run(scenario())


def test_an_answer_from_before_a_change_is_not_kept(store: FakeStore) -> None:
    async def scenario() -> None:
        reference = store.add("tone", version=1)
        residency = make_residency(store)
        store.may_resolve.clear()
        old = asyncio.create_task(residency.resolve(reference))
        await store.is_resolving.wait()

        store.add("tone", version=2)
        residency.invalidate()
        store.may_resolve.set()

        assert (await old).version == 1
        assert (await residency.resolve(reference)).version == 2
        await residency.aclose()

    run(scenario())


def test_unknown_tasks_are_asked_for_every_time(store: FakeStore) -> None:
    async def scenario() -> None:
        residency = make_residency(store)
        for _ in range(2):
            with pytest.raises(TaskNotFoundError):
                await residency.resolve(TaskReference(task="nope"))
        assert store.num_resolved == 2
        await residency.aclose()

    run(scenario())
