import asyncio

import pytest

from doubles.leases import lease, names, run, use
from doubles.serving import FakeStore, RecordingObserver, make_residency
from nunatak_contract.names import TaskReference
from nunatak_registry import TaskNotFoundError


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

        assert (await old).manifest.version == 1
        assert (await residency.resolve(reference)).manifest.version == 2
        await residency.aclose()

    run(scenario())


def test_a_move_is_reported_once_by_its_task(store: FakeStore) -> None:
    async def scenario() -> None:
        observer = RecordingObserver()
        residency = make_residency(store, observer=observer)
        references = store.add("tone", version=1), store.add("intent", version=1)

        for version in (1, 2, 2, 1):
            store.add("tone", version=version)
            residency.invalidate()
            for reference in references * 2:
                await residency.resolve(reference)

        assert observer.moved == ["tone", "tone"]
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
