"""Turns where few can go on at once: one of each caller, however many of them one caller brings."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Turnstile:
    """Lets so many go on at once; belongs to the event loop thread.

    A caller that has had a turn goes behind all others that wait (round-robin, Nagle 1987), so who
    comes waits for at most one turn of each of them. Those of one caller go in their order.
    """

    def __init__(self, *, num_places: int) -> None:
        self._num_free = num_places
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By caller, whose turn it is next first; nobody waits while a place is free."""

    @asynccontextmanager
    async def turn(self, caller: str) -> AsyncGenerator[None]:
        """Wait for a turn, and have it while the block runs."""
        await self._enter(caller)
        try:
            yield
        finally:
            self._leave(caller)

    async def _enter(self, caller: str) -> None:
        if self._num_free:
            self._num_free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                # It was given a turn in the moment in which it gave up.
                self._leave(caller)
            raise

    def _leave(self, caller: str) -> None:
        self._put_behind(caller)
        if not self._admit_next():
            self._num_free += 1

    def _admit_next(self) -> bool:
        while self._waiting:
            caller, queue = next(iter(self._waiting.items()))
            # Who gave up has no turn, and costs its caller none.
            while queue and queue[0].done():
                queue.popleft()
            turn = queue.popleft() if queue else None
            self._put_behind(caller)
            if turn is not None:
                turn.set_result(None)
                return True
        return False

    def _put_behind(self, caller: str) -> None:
        queue = self._waiting.pop(caller, None)
        if queue:
            self._waiting[caller] = queue
