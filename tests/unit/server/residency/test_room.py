import asyncio
from collections import Counter

import pytest

from doubles.leases import lease, names, settle, use
from doubles.refusals import raises
from doubles.serving import FakeStore, RecordingObserver, make_residency
from nunatak_contract.names import TaskReference
from nunatak_server.errors import TaskDoesNotFitError


async def test_a_leased_version_cannot_be_evicted(store: FakeStore) -> None:
    reference = store.add("tone")
    observer = RecordingObserver()
    residency = make_residency(store, observer=observer)
    first = await lease(residency, store, reference)
    second = await lease(residency, store, reference)

    with raises("task_in_use", match="2 requests"):
        residency.evict("tone")
    first.release()
    first.release()
    with raises("task_in_use", match="1 request"):
        residency.evict("tone")
    second.release()

    assert residency.evict("tone") == (1,)
    assert residency.lease_resident(store.manifests[reference]) is None
    assert observer.evicted == ["tone"]
    await residency.aclose()


async def test_evicting_a_task_drops_all_its_versions_or_none(store: FakeStore) -> None:
    observer = RecordingObserver()
    residency = make_residency(store, observer=observer)
    used = await lease(residency, store, store.add("tone", version=1))
    store.add("tone", version=2)
    await use(residency, store, TaskReference(task="tone", version=2), store.add("other"))

    with raises("task_in_use", match="tone/1"):
        residency.evict("tone")
    assert len(residency.resident()) == 3
    used.release()
    assert residency.evict("tone", 2) == (2,)
    assert residency.evict("tone", 2) == ()
    assert residency.evict("tone") == (1,)
    assert names(residency) == ["other/1"]
    assert observer.evicted == ["tone", "tone"]
    await residency.aclose()


async def test_a_load_waits_for_room_until_a_lease_ends(store: FakeStore) -> None:
    residency = make_residency(store, room_for=1)
    used = await lease(residency, store, store.add("used"))
    waiting = asyncio.create_task(lease(residency, store, store.add("cold")))
    await settle()
    assert (store.loaded, names(residency)) == (["used/1"], ["used/1"])

    used.release()

    assert (await waiting).task.manifest.task == "cold"
    assert names(residency) == ["cold/1"]
    await residency.aclose()


async def test_more_versions_than_fit_are_served_one_after_the_other(store: FakeStore) -> None:
    observer = RecordingObserver()
    residency = make_residency(store, room_for=3, observer=observer)
    references = [store.add(f"task-{index}") for index in range(12)]
    peak = 0

    async def ask(reference: TaskReference) -> None:
        nonlocal peak
        leased = await lease(residency, store, reference)
        peak = max(peak, len(residency.resident()))
        await asyncio.sleep(0)
        leased.release()

    await asyncio.gather(*(ask(each) for each in references * 3))

    assert peak <= 3
    assert len(residency.resident()) <= 3
    came = Counter(task for task, _ in observer.loads)
    stayed = Counter(task.manifest.task for task in residency.resident())
    assert came == stayed + Counter(observer.evicted)
    assert residency.task_bytes().keys() == stayed.keys()
    await residency.aclose()


async def test_a_load_that_waits_when_the_server_ends_is_refused(store: FakeStore) -> None:
    residency = make_residency(store, room_for=1)
    used = await lease(residency, store, store.add("used"))
    waiting = asyncio.create_task(lease(residency, store, store.add("cold")))
    await settle()

    await residency.aclose()

    with raises("draining"):
        await waiting
    used.release()


async def test_a_version_just_preloaded_is_not_the_first_to_go(store: FakeStore) -> None:
    residency = make_residency(store, room_for=2)
    await residency.preload(store.manifests[store.add("new")])
    await residency.preload(store.manifests[store.add("new")])
    await use(residency, store, store.add("one"), store.add("two"), store.add("three"))

    assert "new/1" in names(residency)
    await residency.aclose()


async def test_a_version_that_can_never_fit_is_refused_with_what_it_needs(store: FakeStore) -> None:
    residency = make_residency(store, room_for=0)

    with pytest.raises(TaskDoesNotFitError) as refusal:
        await lease(residency, store, store.add("huge"))

    assert refusal.value.fields["needed_bytes"] == store.branch.num_bytes
    assert refusal.value.fields["budget_bytes"] == 0
    assert store.loaded == []
    await residency.aclose()


async def test_a_load_that_waits_is_refused_when_its_room_is_pinned(store: FakeStore) -> None:
    residency = make_residency(store, room_for=1)
    reference = store.add("used")
    used = await lease(residency, store, reference)
    waiting = asyncio.create_task(lease(residency, store, store.add("cold")))
    await settle()

    await residency.pin(store.manifests[reference])
    used.release()

    with pytest.raises(TaskDoesNotFitError):
        await waiting
    await residency.aclose()
