"""Giving way: what loads do where they share cores with batches."""

import threading
import time
from collections.abc import Callable

REST = 1.0
"""Seconds of rest for each of work."""
LATELY_S = 0.1
"""Callers that ask one text after another leave the batches such gaps, and shorter ones."""


class GivingWay:
    """Keeps the calling thread to half a core while batches run; for threads of the loads.

    A batch on a processor takes all cores, so it waits where a load has one of them, and with it
    all texts of the batch. A load is cut into pieces of at most some milliseconds, after each of
    which it calls this.

    Not by a lower priority of its thread: one that holds the interpreter's lock and gets no core
    keeps the server waiting for as long as others use the machine.
    """

    def __init__(
        self,
        idle_s: Callable[[], float],
        *,
        rest: Callable[[float], object] = time.sleep,
        worked: Callable[[], float] = time.thread_time,
    ) -> None:
        """`idle_s` tells how long no batch has run, `worked` the calling thread's processor time.

        Both in seconds.
        """
        self._idle_s = idle_s
        self._rest = rest
        self._worked = worked
        self._threads = threading.local()

    def begin(self) -> None:
        """Begin a load: what the thread did before needs no rest."""
        self._threads.worked = self._worked()

    def __call__(self) -> None:
        """Rest for as long as the last piece took, if batches run."""
        begun: float | None = getattr(self._threads, "worked", None)
        if begun is not None and self._idle_s() < LATELY_S:
            self._rest(REST * (self._worked() - begun))
        self.begin()
