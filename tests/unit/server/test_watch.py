import asyncio
from collections.abc import Iterator

import pytest

from nunatak_registry import Generation, StoreUnavailableError
from nunatak_server.following import RegistryWatch

Turn = tuple[int, str] | None
"""A number and a token; None if the registry cannot be read."""


class Script:
    """Gives one generation per poll; ends the watch after the last."""

    def __init__(self, turns: list[Turn]) -> None:
        self._turns: Iterator[Turn] = iter(turns)
        self.changes: list[int] = []
        self.restores: list[int] = []
        self.readable: list[bool] = []
        self.num_polls = 0
        self.watch = RegistryWatch(
            generation=self.generation,
            on_change=lambda _: self.changes.append(self.num_polls),
            on_restore=self.on_restore,
            interval_s=0.1,
            pause=self.pause,
        )

    async def generation(self) -> Generation:
        try:
            turn = next(self._turns)
        except StopIteration:
            raise asyncio.CancelledError from None
        self.num_polls += 1
        if turn is None:
            raise StoreUnavailableError("the index is gone")
        return Generation(number=turn[0], token=turn[1])

    async def on_restore(self) -> None:
        assert self.changes[-1] == self.num_polls, "a change is told first"
        self.restores.append(self.num_polls)

    async def pause(self, seconds: float) -> None:
        assert seconds == 0.1
        self.readable.append(self.watch.is_readable)


def follow(turns: list[Turn]) -> Script:
    script = Script(turns)

    async def scenario() -> None:
        watching = asyncio.create_task(script.watch.run())
        await asyncio.wait([watching])
        assert watching.cancelled()

    asyncio.run(scenario())
    return script


def test_each_change_is_reported_once() -> None:
    found = follow([(7, "a"), (7, "a"), (8, "b"), (8, "b"), (8, "b"), (9, "c")])

    assert found.changes == [1, 3, 6]
    assert found.restores == []


def test_a_registry_that_cannot_be_read_changes_nothing() -> None:
    found = follow([(7, "a"), None, None, (7, "a"), (8, "b")])

    assert found.changes == [1, 5]
    assert found.readable == [True, False, False, True, True]


def test_a_generation_that_went_back_is_a_restore(caplog: pytest.LogCaptureFixture) -> None:
    found = follow([(9, "c"), (7, "a"), (8, "d")])

    assert found.changes == [1, 2, 3]
    assert found.restores == [2]
    assert "was restored: its generation was 9 and is now 7" in caplog.text


def test_the_same_number_by_other_changes_is_a_restore() -> None:
    found = follow([(9, "c"), (9, "x"), (9, "x")])

    assert found.changes == [1, 2]
    assert found.restores == [2]
