"""Writes lines of the log together: a call of the system for each costs more than the line.

Under overload there are hundreds of lines a second, and whoever writes one waits for the system and
then for the interpreter, which another thread has taken meanwhile.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from typing import Final, TextIO

DELAY_S: Final = 0.1
MAX_LINES: Final = 1000


class JoiningHandler(logging.StreamHandler[TextIO]):
    """Keeps lines for `DELAY_S` at most, and writes them in their order and in one piece.

    A warning or worse is written at once, with all before it; what is left is written by `flush`,
    which `logging` calls when the process ends.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        """Write to `stream`, or else to the standard error."""
        super().__init__(stream)
        self._lines = deque[str]()
        self._writing = threading.RLock()
        self._has_lines = threading.Event()
        self._is_closed = False
        threading.Thread(target=self._write_late, name="nunatak-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line of an event, or write it."""
        try:
            self._lines.append(self.format(record) + self.terminator)
            if record.levelno >= logging.WARNING or len(self._lines) >= MAX_LINES:
                self.flush()
            elif not self._has_lines.is_set():
                self._has_lines.set()
        except Exception:  # noqa: BLE001 - whoever logs must not fail by it
            self.handleError(record)

    def flush(self) -> None:
        """Write what is kept."""
        with self._writing:
            # One by one, because others add to them meanwhile.
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            if lines:
                self.stream.write("".join(lines))
                self.stream.flush()

    def close(self) -> None:
        """Write what is kept, and end the thread that writes."""
        self._is_closed = True
        self._has_lines.set()
        self.flush()
        super().close()

    def _write_late(self) -> None:
        while not self._is_closed:
            self._has_lines.wait()
            time.sleep(DELAY_S)
            self._has_lines.clear()
            # The log is the one place to tell of it: the next line tries again.
            with contextlib.suppress(OSError, ValueError):
                self.flush()
