"""A restored registry reuses a number for other content."""

import asyncio

from doubles.leases import lease, names, settle, until, use
from doubles.refusals import raises
from doubles.serving import FakeStore, make_residency
from nunatak_contract.errors import NunatakError
from nunatak_contract.names import TaskReference

TONE = TaskReference(task="tone", version=1)


def restore(store: FakeStore) -> None:
    """Give the number of the version other content."""
    store.add("tone", seed=99)


async def test_a_version_in_memory_is_not_leased_for_the_new_content_of_its_number(
    store: FakeStore,
) -> None:
    store.add("tone")
    residency = make_residency(store)
    former = await lease(residency, store, TONE)
    restore(store)

    new = await lease(residency, store, TONE)

    assert new.task.manifest == store.manifests[TONE] != former.task.manifest
    assert store.loaded == ["tone/1", "tone/1"]
    assert residency.lease_resident(former.task.manifest) is not None
    await residency.aclose()


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
    await residency.aclose()


async def test_a_failure_is_not_remembered_for_another_content(store: FakeStore) -> None:
    store.add("tone")
    residency = make_residency(store)
    store.broken["tone/1"] = NunatakError(
        "probe_failed", reference="tone/1", position=0, reason="other logits"
    )
    with raises("probe_failed"):
        await lease(residency, store, TONE)
    store.broken.clear()
    with raises("probe_failed"):
        await lease(residency, store, TONE)
    restore(store)

    assert (await lease(residency, store, TONE)).task.manifest == store.manifests[TONE]
    await residency.aclose()


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
    await residency.aclose()


async def test_a_registry_that_cannot_be_read_takes_nothing_from_memory(store: FakeStore) -> None:
    residency = make_residency(store)
    await use(residency, store, store.add("tone"))
    store.is_down = True

    await residency.drop_unnamed(store.resolve)

    assert names(residency) == ["tone/1"]
    await residency.aclose()
