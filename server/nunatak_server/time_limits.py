"""Time limits for what mostly need not wait: a clock is started only for what does."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def within(
    seconds: float, work: Coroutine[Any, Any, Result], *, late: Callable[[], Exception]
) -> Result:
    """Await `work`, but cancel it and raise what `late` makes once so many seconds have passed.

    To start and to stop a clock takes longer than most of what is limited here.
    """
    try:
        waited_for = work.send(None)
    except StopIteration as done:
        return done.value
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await _rest_of(work, waited_for)
    except TimeoutError:
        if limit.expired():
            raise late() from None
        raise


@coroutine
def _rest_of(
    work: Coroutine[Any, Any, Result], waited_for: object
) -> Generator[object, Any, Result]:
    """Go on with a coroutine that waits already; as `yield from`, which could only begin one."""
    try:
        while True:
            try:
                given = yield waited_for
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # noqa: BLE001 - whatever is thrown in is for the work
                waited_for = work.throw(error)
            else:
                waited_for = work.send(given)
    except StopIteration as done:
        return done.value
