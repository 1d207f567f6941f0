"""Makes and writes lines of the log together, and not one by one between requests.

Under overload there are hundreds of lines a second. Whoever writes one waits for the system and
then for the interpreter, which another thread has taken meanwhile; and code that runs once between
two forward passes finds nothing of itself in the caches.
"""

import contextlib
import copy
import logging
import threading
import time
from collections import deque
from typing import Final, TextIO

DELAY_S: Final = 0.1
MAX_EVENTS: Final = 1000


class JoiningHandler(logging.StreamHandler[TextIO]):
    """Keeps events for `DELAY_S` at most, and writes their lines in order and in one piece.

    A warning or worse is written at once, with all before it; what is left is written by `flush`,
    which `logging` calls when the process ends.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        """Write to `stream`, or else to the standard error."""
        super().__init__(stream)
        self._events = deque[logging.LogRecord]()
        self._writing = threading.RLock()
        self._has_events = threading.Event()
        self._is_closed = False
        threading.Thread(target=self._write_late, name="nunatak-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep an event, or write its line."""
        try:
            self._events.append(_settled(record))
        except Exception:  # noqa: BLE001 - whoever logs must not fail by it
            self.handleError(record)
        if record.levelno >= logging.WARNING or len(self._events) >= MAX_EVENTS:
            self.flush()
        elif not self._has_events.is_set():
            self._has_events.set()

    def flush(self) -> None:
        """Write what is kept."""
        with self._writing:
            # One by one, because others add to them meanwhile.
            events = [self._events.popleft() for _ in range(len(self._events))]
            if events:
                lines = [line for event in events if (line := self._line_of(event))]
                # The log is the one place to tell of it: the next line tries again.
                with contextlib.suppress(OSError, ValueError):
                    self.stream.write("".join(lines))
                    self.stream.flush()

    def close(self) -> None:
        """Write what is kept, and end the thread that writes."""
        self._is_closed = True
        self._has_events.set()
        self.flush()
        super().close()

    def _write_late(self) -> None:
        while not self._is_closed:
            self._has_events.wait()
            time.sleep(DELAY_S)
            self._has_events.clear()
            self.flush()

    def _line_of(self, record: logging.LogRecord) -> str | None:
        try:
            return self.format(record) + self.terminator
        except Exception:  # noqa: BLE001 - no event must keep others from the log
            self.handleError(record)
            return None


def _settled(record: logging.LogRecord) -> logging.LogRecord:
    """Return an event with its message made: the arguments may be other ones later."""
    if not record.args:
        return record
    settled = copy.copy(record)
    settled.msg, settled.args = record.getMessage(), None
    return settled
