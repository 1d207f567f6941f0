"""A load without room delays the loads behind it for a while."""

import asyncio

from doubles.leases import lease, names, settle
from doubles.serving import FakeStore, make_residency
from nunatak_server.residency.residency import Residency


async def fill(store: FakeStore, residency: Residency) -> None:
    """Lease half of ten places for good."""
    store.sizes |= {"hot": 5, "large": 6, "larger": 7}
    await lease(residency, store, store.add("hot"))


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
    await residency.aclose()


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
    await residency.aclose()


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
    await residency.aclose()
