import asyncio
from collections.abc import Iterator

from nunatak_registry import StoreUnavailableError
from nunatak_server.catalog.watch import RegistryWatch


class Script:
    """Gives one generation per poll; ends the watch after the last."""

    def __init__(self, generations: list[int | None]) -> None:
        self._generations: Iterator[int | None] = iter(generations)
        self.changes: list[int] = []
        self.num_polls = 0

    async def generation(self) -> int:
        try:
            generation = next(self._generations)
        except StopIteration:
            raise asyncio.CancelledError from None
        self.num_polls += 1
        if generation is None:
            raise StoreUnavailableError("the index is gone")
        return generation

    async def pause(self, seconds: float) -> None:
        assert seconds == 0.1


def changes_seen(generations: list[int | None]) -> list[int]:
    script = Script(generations)
    changes: list[int] = []
    watch = RegistryWatch(
        generation=script.generation,
        on_change=lambda: changes.append(script.num_polls),
        interval_s=0.1,
        pause=script.pause,
    )

    async def scenario() -> None:
        watching = asyncio.create_task(watch.run())
        await asyncio.wait([watching])
        assert watching.cancelled()

    asyncio.run(scenario())
    return changes


def test_each_change_is_told_once() -> None:
    assert changes_seen([7, 7, 8, 8, 8, 9]) == [1, 3, 6]


def test_a_registry_that_cannot_be_read_changes_nothing() -> None:
    assert changes_seen([7, None, None, 7, 8]) == [1, 5]
