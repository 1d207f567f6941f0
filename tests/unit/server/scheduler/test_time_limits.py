"""Time limits, like `asyncio.timeout`, for work that waits and for work that does not."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from nunatak_server.scheduler.turns import within

Work = Coroutine[Any, Any, str]
SOON_S = 0.02
LONG_S = 30.0


class LateError(Exception):
    """The error when the time is over."""


class WorkError(Exception):
    """The error of the work itself."""


async def at_once() -> str:
    return "done"


async def after_a_turn() -> str:
    await asyncio.sleep(0)
    return "done"


async def after_a_while() -> str:
    for _ in range(3):
        await asyncio.sleep(SOON_S / 10)
        await asyncio.sleep(0)
    return "done"


async def after_its_own_timeout() -> str:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SOON_S / 4):
            await asyncio.sleep(LONG_S)
    return "done"


async def in_a_task() -> str:
    return await asyncio.create_task(after_a_while())


WORK = [at_once, after_a_turn, after_a_while, after_its_own_timeout, in_a_task]


@pytest.mark.parametrize("work", WORK)
async def test_work_in_time_gives_its_result(work: Callable[[], Work]) -> None:
    assert await within(LONG_S, work(), late=LateError) == "done"


@pytest.mark.parametrize("error", [WorkError, TimeoutError])
@pytest.mark.parametrize("work", WORK)
async def test_what_the_work_raises_is_raised_and_is_no_lateness(
    work: Callable[[], Work], error: type[Exception]
) -> None:
    async def fail() -> None:
        await work()
        raise error

    with pytest.raises(error):
        await within(LONG_S, fail(), late=LateError)


async def test_work_that_is_late_is_cancelled_and_cleans_up() -> None:
    cleaned = list[str]()

    async def work() -> None:
        try:
            await asyncio.sleep(LONG_S)
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")

    with pytest.raises(LateError):
        await within(SOON_S, work(), late=LateError)
    assert cleaned == ["up"]


@pytest.mark.parametrize("num_turns", [1, 2])
async def test_a_cancelled_caller_cancels_the_work_and_is_not_late(num_turns: int) -> None:
    ends = list[str]()

    async def work() -> None:
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    task = asyncio.create_task(within(LONG_S, work(), late=LateError))
    for _ in range(num_turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends == ["cancelled"]


async def test_work_that_is_given_up_is_closed() -> None:
    ends = list[str]()

    async def work() -> None:
        try:
            await asyncio.sleep(LONG_S)
        finally:
            ends.append("closed")

    waiting = within(LONG_S, work(), late=LateError)
    waiting.send(None)
    waiting.close()
    assert ends == ["closed"]
