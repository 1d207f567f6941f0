import asyncio

import pytest

from doubles.backbones import tiny_backbone
from doubles.serving import FakeStore, ManualClock, RecordingObserver, make_residency
from doubles.tasks import random_parameters, spec_of
from nunatak_artifact import LoadedTask
from nunatak_model import Branch, HeadOnly, build_branch
from nunatak_registry import CorruptBlobError, TaskNotFoundError, TaskReference
from nunatak_server.errors import TaskInUseError, TaskUnhealthyError
from nunatak_server.residency import FAILURE_MEMORY_S


@pytest.fixture(scope="module")
def branch() -> Branch:
    backbone = tiny_backbone(num_layers=1)
    spec = spec_of(backbone, HeadOnly(), num_labels=2)
    return build_branch(spec, backbone.config, random_parameters(spec, backbone, seed=0))


def test_many_requests_for_a_cold_version_load_it_once(branch: Branch) -> None:
    async def scenario() -> None:
        store = FakeStore(branch)
        reference = store.add("tone")
        residency = make_residency(store)

        tasks = await asyncio.gather(*(residency.load(reference) for _ in range(20)))

        assert store.loaded == ["tone/1"]
        assert all(task is tasks[0] for task in tasks)
        assert residency.find(reference) is tasks[0]
        await residency.aclose()

    asyncio.run(scenario())


def test_a_waiter_that_gives_up_leaves_the_load_to_the_others(branch: Branch) -> None:
    async def scenario() -> None:
        store = FakeStore(branch)
        reference = store.add("tone")
        residency = make_residency(store)
        store.may_load.clear()
        first = asyncio.create_task(residency.load(reference))
        second = asyncio.create_task(residency.load(reference))
        await asyncio.sleep(0)

        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        store.may_load.set()

        assert (await second).manifest.reference == "tone/1"
        assert store.loaded == ["tone/1"]
        await residency.aclose()

    asyncio.run(scenario())


def test_a_load_that_hangs_disturbs_no_other_task(branch: Branch) -> None:
    async def scenario() -> None:
        store = FakeStore(branch)
        slow, quick = store.add("slow"), store.add("quick")
        residency = make_residency(store)
        await residency.load(quick)
        store.may_load.clear()
        hanging = asyncio.create_task(residency.load(slow))

        found = await residency.load(quick)

        assert found.manifest.task == "quick"
        assert not hanging.done()
        store.may_load.set()
        await hanging
        await residency.aclose()

    asyncio.run(scenario())


def test_a_failed_load_fails_its_waiters_and_nobody_else(branch: Branch) -> None:
    async def scenario() -> None:
        store = FakeStore(branch)
        broken, sound = store.add("broken"), store.add("sound")
        store.broken["broken/1"] = CorruptBlobError("0" * 64, "is missing")
        observer = RecordingObserver()
        residency = make_residency(store, observer=observer)

        first, second, third = await asyncio.gather(
            residency.load(broken),
            residency.load(broken),
            residency.load(sound),
            return_exceptions=True,
        )

        assert isinstance(first, CorruptBlobError)
        assert isinstance(second, CorruptBlobError)
        assert isinstance(third, LoadedTask)
        assert sorted(store.loaded) == ["broken/1", "sound/1"]
        assert sorted(observer.loads) == [False, True]
        assert [task.manifest.task for task in residency.resident()] == ["sound"]
        await residency.aclose()

    asyncio.run(scenario())


def test_a_failure_is_remembered_for_a_moment_and_then_tried_again(branch: Branch) -> None:
    async def scenario() -> None:
        store = FakeStore(branch)
        reference = store.add("tone")
        store.broken["tone/1"] = CorruptBlobError("0" * 64, "is missing")
        clock = ManualClock()
        residency = make_residency(store, clock=clock)
        for _ in range(3):
            with pytest.raises(CorruptBlobError):
                await residency.load(reference)
        assert store.loaded == ["tone/1"]

        del store.broken["tone/1"]
        clock.now += FAILURE_MEMORY_S

        assert (await residency.load(reference)).manifest.task == "tone"
        await residency.aclose()

    asyncio.run(scenario())


def test_preload_tries_again_at_once(branch: Branch) -> None:
    async def scenario() -> None:
        store = FakeStore(branch)
        reference = store.add("tone")
        store.broken["tone/1"] = CorruptBlobError("0" * 64, "is missing")
        residency = make_residency(store)
        with pytest.raises(CorruptBlobError):
            await residency.load(reference)

        del store.broken["tone/1"]
        loaded = await residency.preload(store.manifests[reference])

        assert residency.find(reference) is loaded
        await residency.aclose()

    asyncio.run(scenario())


def test_an_unforeseen_failure_of_a_load_is_the_failure_of_that_task(branch: Branch) -> None:
    async def scenario() -> None:
        store = FakeStore(branch)
        reference = store.add("tone")
        store.broken["tone/1"] = MemoryError()
        residency = make_residency(store)

        with pytest.raises(TaskUnhealthyError, match="MemoryError"):
            await residency.load(reference)
        await residency.aclose()

    asyncio.run(scenario())


def test_a_reference_is_looked_up_once_until_the_registry_changes(branch: Branch) -> None:
    async def scenario() -> None:
        store = FakeStore(branch)
        reference = store.add("tone", version=1)
        residency = make_residency(store)
        await residency.load(reference)
        await residency.load(reference)
        assert store.num_resolved == 1

        store.add("tone", version=2)
        residency.invalidate()

        assert residency.find(reference) is None
        assert (await residency.load(reference)).manifest.version == 2
        assert [task.key for task in residency.resident()] == [("tone", 1), ("tone", 2)]
        await residency.aclose()

    asyncio.run(scenario())


def test_an_answer_from_before_a_change_is_not_kept(branch: Branch) -> None:
    async def scenario() -> None:
        store = FakeStore(branch)
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

    asyncio.run(scenario())


def test_unknown_tasks_are_asked_for_every_time(branch: Branch) -> None:
    async def scenario() -> None:
        store = FakeStore(branch)
        residency = make_residency(store)
        for _ in range(2):
            with pytest.raises(TaskNotFoundError):
                await residency.load(TaskReference(task="nope"))
        assert store.num_resolved == 2
        await residency.aclose()

    asyncio.run(scenario())


def test_a_leased_version_cannot_be_evicted(branch: Branch) -> None:
    async def scenario() -> None:
        store = FakeStore(branch)
        reference = store.add("tone")
        observer = RecordingObserver()
        residency = make_residency(store, observer=observer)
        task = await residency.load(reference)

        with residency.lease([task]), residency.lease([task]):
            with pytest.raises(TaskInUseError, match="2 requests"):
                residency.evict("tone")
            assert residency.find(reference) is task

        assert residency.evict("tone") == (1,)
        assert residency.find(reference) is None
        assert observer.num_evicted == 1
        await residency.aclose()

    asyncio.run(scenario())


def test_evicting_a_task_drops_all_its_versions_or_none(branch: Branch) -> None:
    async def scenario() -> None:
        store = FakeStore(branch)
        residency = make_residency(store)
        first = await residency.load(store.add("tone", version=1))
        store.add("tone", version=2)
        residency.invalidate()
        await residency.load(TaskReference(task="tone", version=2))
        await residency.load(store.add("other"))

        with residency.lease([first]), pytest.raises(TaskInUseError, match="tone/1"):
            residency.evict("tone")
        assert len(residency.resident()) == 3
        assert residency.evict("tone", 2) == (2,)
        assert residency.evict("tone", 2) == ()
        assert residency.evict("tone") == (1,)
        assert [task.key for task in residency.resident()] == [("other", 1)]
        await residency.aclose()

    asyncio.run(scenario())


def test_a_lease_makes_a_version_resident_again(branch: Branch) -> None:
    async def scenario() -> None:
        store = FakeStore(branch)
        reference = store.add("tone")
        residency = make_residency(store)
        task = await residency.load(reference)
        residency.evict("tone")

        with residency.lease([task]):
            assert residency.find(reference) is task
        await residency.aclose()

    asyncio.run(scenario())
