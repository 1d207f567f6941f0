"""Leases of versions in memory: helpers for tests of residency."""

import asyncio
from collections.abc import Callable

from doubles.serving import FakeStore
from nunatak_contract.names import TaskReference
from nunatak_server.residency.residency import Lease, Residency


async def lease(residency: Residency, store: FakeStore, reference: TaskReference) -> Lease:
    return await residency.lease((await store.resolve(reference)).manifest)


async def use(residency: Residency, store: FakeStore, *references: TaskReference) -> None:
    for reference in references:
        (await lease(residency, store, reference)).release()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that a thread makes true without an event."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)


async def settle() -> None:
    """Run the event loop until only threads can continue."""
    for _ in range(10):
        await asyncio.sleep(0)


def names(residency: Residency) -> list[str]:
    return [task.manifest.reference for task in residency.resident()]
