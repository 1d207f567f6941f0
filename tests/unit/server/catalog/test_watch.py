import asyncio
import errno
from collections.abc import Collection, Iterator

import pytest

from nunatak_registry import Generation, StoreUnavailableError
from nunatak_server.catalog.following import RegistryWatch

Turn = tuple[int, str] | None
"""A number and a token; None if the registry cannot be read."""


class Script:
    """Gives one generation per poll; ends the watch after the last."""

    def __init__(self, turns: list[Turn], *, refused: Collection[int] = ()) -> None:
        self.refused = refused
        """Polls whose changes cannot be applied."""
        self._turns: Iterator[Turn] = iter(turns)
        self.changes: list[int] = []
        self.restores: list[int] = []
        self.readable: list[bool] = []
        self.num_polls = 0
        self.watch = RegistryWatch(
            generation=self.generation,
            on_change=self.on_change,
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
        if turn[0] < 0:
            raise OSError(errno.EMFILE, "Too many open files")
        return Generation(number=turn[0], token=turn[1])

    async def on_change(self, _: Generation) -> None:
        if self.num_polls in self.refused:
            raise StoreUnavailableError("the index is locked")
        self.changes.append(self.num_polls)

    async def on_restore(self) -> None:
        assert self.changes[-1] == self.num_polls, "a change is told first"
        self.restores.append(self.num_polls)

    async def pause(self, seconds: float) -> None:
        assert seconds == 0.1
        self.readable.append(self.watch.is_readable)


def follow(turns: list[Turn], *, refused: Collection[int] = ()) -> Script:
    script = Script(turns, refused=refused)

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


def test_a_registry_that_cannot_be_read_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    found = follow([(7, "a"), None, None, (7, "a"), (8, "b")])

    assert [it.getMessage() for it in caplog.records] == [
        "the registry cannot be read, serving the known versions: the index is gone",
        "the registry can be read again",
    ]

    assert found.changes == [1, 5]
    assert found.readable == [True, False, False, True, True]


def test_a_change_that_cannot_be_applied_is_reported_again() -> None:
    found = follow([(7, "a"), (8, "b"), (8, "b"), (8, "b")], refused={2, 3})

    assert found.changes == [1, 4]
    assert found.readable == [True, False, False, True]


def test_a_poll_without_free_descriptors_does_not_end_the_watch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = follow([(7, "a"), (-1, ""), (-1, ""), (8, "b")])

    assert found.changes == [1, 4]
    assert found.readable == [True, False, False, True]
    assert caplog.text.count("Traceback") == 1


def test_a_generation_that_went_back_is_a_restore(caplog: pytest.LogCaptureFixture) -> None:
    found = follow([(9, "c"), (7, "a"), (8, "d")])

    assert found.changes == [1, 2, 3]
    assert found.restores == [2]
    assert "was restored: its generation was 9 and is now 7" in caplog.text


def test_the_same_number_by_other_changes_is_a_restore() -> None:
    found = follow([(9, "c"), (9, "x"), (9, "x")])

    assert found.changes == [1, 2]
    assert found.restores == [2]
