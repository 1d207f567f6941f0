"""Giving way: what loads do where they share cores with batches."""

import threading
import time
from collections.abc import Callable

REST = 2.0
"""Seconds of rest for each of work; without rest stays what ends between two batches."""
MAX_REST_S = 0.02
"""Of a long piece: the batch that it met has ended by then, as a rule."""


class GivingWay:
    """Keeps the calling thread to a part of a core beside batches; for threads of the loads.

    A batch on a processor takes all cores, so it waits where a load has one of them, and with it
    all texts of the batch. A load is done in pieces, after each of which it calls this.

    Not by a lower priority of its thread: one that holds the interpreter's lock and gets no core
    keeps the server waiting for as long as others use the machine.
    """

    def __init__(
        self,
        is_wanted: Callable[[], bool],
        *,
        rest: Callable[[float], object] = time.sleep,
        worked: Callable[[], float] = time.thread_time,
    ) -> None:
        """`worked` tells the processor time of the calling thread, in seconds.

        Both functions are called on the threads of the loads.
        """
        self._is_wanted = is_wanted
        self._rest = rest
        self._worked = worked
        self._threads = threading.local()

    def begin(self) -> None:
        """Begin a load: what the thread did before needs no rest."""
        self._threads.worked = self._worked()

    def __call__(self) -> None:
        """Rest for twice as long as the last piece took, if that is wanted, but not for long."""
        begun: float | None = getattr(self._threads, "worked", None)
        if begun is not None and self._is_wanted():
            self._rest(min(MAX_REST_S, REST * (self._worked() - begun)))
        self.begin()
