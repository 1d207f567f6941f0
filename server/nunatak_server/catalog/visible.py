"""The catalog as one caller sees it: tasks that are not on the caller's list do not exist."""

from collections.abc import Awaitable
from typing import NoReturn, TypeVar

from nunatak_registry import (
    RegistryError,
    StoreUnavailableError,
    TaskManifest,
    TaskNotFoundError,
    TaskReference,
    TaskSummary,
    Traffic,
)
from nunatak_server.access.callers import TaskList
from nunatak_server.catalog.catalog import Catalog
from nunatak_server.observation.records import note_task

Found = TypeVar("Found")


class VisibleCatalog:
    """Answers questions about tasks as if the registry held only the caller's.

    What is found is noted for the log: it is no longer just a word of the caller's.
    """

    def __init__(self, catalog: Catalog, tasks: TaskList) -> None:
        self._catalog = catalog
        self._tasks = tasks

    async def resolve(self, reference: TaskReference) -> TaskManifest:
        """Return the manifest of the version that a reference means now."""
        lookup = self._catalog.resolve(reference)
        manifest = await visible(reference.task, lookup, tasks=self._tasks)
        note_task(manifest.reference)
        return manifest

    async def traffic(self, reference: TaskReference) -> Traffic:
        """Return the version that a reference means now, and what runs beside it."""
        lookup = self._catalog.traffic(reference)
        traffic = await visible(reference.task, lookup, tasks=self._tasks)
        note_task(traffic.manifest.reference)
        return traffic

    async def task(self, name: str) -> TaskSummary:
        """Return one task."""
        summary = await visible(name, self._catalog.task(name), tasks=self._tasks)
        note_task(summary.name)
        return summary

    async def tasks(self) -> list[TaskSummary]:
        """Return the caller's tasks."""
        return [task for task in await self._catalog.tasks() if self._tasks.allows(task.name)]


async def visible(task: str, lookup: Awaitable[Found], *, tasks: TaskList) -> Found:
    """Return what a look-up of a task finds, if the task is on the list.

    One that is not is looked up all the same, so that the time does not tell it from one that
    is not there.

    Raises:
        TaskNotFoundError: there is no such task, or it is not on the list.
    """
    if not tasks.allows(task):
        await deny(task, lookup)
    return await lookup


async def deny(task: str, lookup: Awaitable[object]) -> NoReturn:
    """Look a task up that is not on the list, and answer as if it did not exist.

    Raises:
        TaskNotFoundError: always, unless the store cannot be read.
    """
    try:
        await lookup
    except StoreUnavailableError:
        raise
    except RegistryError:
        pass
    raise TaskNotFoundError(task)
