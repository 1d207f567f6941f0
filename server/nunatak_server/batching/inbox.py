"""The inbox: hands rows over from the event loop to the engine thread."""

import threading
from collections.abc import Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Inbox(Generic[Item]):
    """A thread-safe, unbounded hand-over; admission bounds what is put in."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._items: list[Item] = []
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, items: Iterable[Item]) -> bool:
        """Hand items over; return False, taking none, once the inbox is closed."""
        with self._changed:
            if self._is_closed:
                return False
            self._items.extend(items)
            self._changed.notify()
            return True

    def take(self, *, block: bool) -> list[Item] | None:
        """Take everything there is, oldest first; None once the inbox is closed and empty.

        With `block`, wait until there is something to take or the inbox is closed.
        """
        with self._changed:
            if block:
                self._changed.wait_for(lambda: self._items or self._is_closed)
            if not self._items and self._is_closed:
                return None
            items, self._items = self._items, []
            return items

    def close(self) -> None:
        """Refuse new items; what is inside can still be taken."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
