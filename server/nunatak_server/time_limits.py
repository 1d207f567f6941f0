"""Time limits that fail with an error of the caller's choice."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def within(
    seconds: float, work: Coroutine[Any, Any, Result], *, late: Callable[[], Exception]
) -> Result:
    """Await `work`. After `seconds`, cancel `work` and raise the error that `late` makes."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if limit.expired():
            raise late() from None
        raise
