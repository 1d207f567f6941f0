"""Versions that an operator wants in memory from the start on."""

import logging
from collections.abc import Awaitable, Callable, Sequence

from nunatak_registry import TaskManifest, TaskReference
from nunatak_server.errors.known import KNOWN_ERRORS

logger = logging.getLogger(__name__)


def references_in(text: str) -> tuple[TaskReference, ...]:
    """Read task references that commas separate.

    Raises:
        InvalidNameError: one of them does not follow the grammar.
    """
    return tuple(TaskReference.parse(part.strip()) for part in text.split(",") if part.strip())


async def pin_at_start(
    references: Sequence[TaskReference],
    *,
    resolve: Callable[[TaskReference], Awaitable[TaskManifest]],
    pin: Callable[[TaskManifest], Awaitable[object]],
) -> None:
    """Pin what each reference means now; one that cannot be served is logged, and spares the rest.

    A server that would not start for one bad version would take all the others with it.
    """
    for reference in references:
        try:
            await pin(await resolve(reference))
        except KNOWN_ERRORS as error:
            logger.error("%s is not pinned: %s", reference, error)  # noqa: TRY400 - no bug of ours
