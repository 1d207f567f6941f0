import asyncio
import contextlib
import threading
from collections.abc import Sequence

import pytest

from nunatak_registry import StoreUnavailableError
from nunatak_server.catalog.watch import RegistryWatch


class Script:
    """Gives one generation per poll, and keeps the poll after the last waiting."""

    def __init__(self, generations: Sequence[int | None]) -> None:
        self._generations = iter(generations)
        self.is_over = threading.Event()
        self.may_end = threading.Event()

    def __call__(self) -> int:
        for generation in self._generations:
            if generation is None:
                raise StoreUnavailableError("the index is gone")
            return generation
        self.is_over.set()
        self.may_end.wait()
        return 0


def num_changes_seen(generations: Sequence[int | None]) -> int:
    async def scenario() -> int:
        script, changes = Script(generations), list[threading.Thread]()
        watch = RegistryWatch(
            generation=script,
            on_change=lambda: changes.append(threading.current_thread()),
            interval_s=0,
        )
        watching = asyncio.create_task(watch.run())
        await asyncio.to_thread(script.is_over.wait)
        # Whatever was told before is heard by then.
        await asyncio.sleep(0)
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        assert set(changes) <= {threading.current_thread()}
        seen = len(changes)
        script.may_end.set()
        return seen

    return asyncio.run(scenario())


@pytest.mark.parametrize(("num_polls", "expected"), [(1, 1), (2, 1), (3, 2), (5, 2), (6, 3)])
def test_each_change_is_told_once_on_the_event_loop(num_polls: int, expected: int) -> None:
    assert num_changes_seen([7, 7, 8, 8, 8, 9][:num_polls]) == expected


def test_a_registry_that_cannot_be_read_changes_nothing() -> None:
    assert num_changes_seen([7, None, None, 7]) == 1
    assert num_changes_seen([7, None, None, 8]) == 2


def test_what_nobody_foresaw_ends_the_watch() -> None:
    def fail() -> int:
        raise ZeroDivisionError

    watch = RegistryWatch(generation=fail, on_change=lambda: None, interval_s=0)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(watch.run())
