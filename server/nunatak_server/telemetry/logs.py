"""Makes and writes lines of the log together, and not one by one between requests.

Under overload there are hundreds of lines a second. Whoever writes one waits for the system and
then for the interpreter, which another thread has taken meanwhile; and code that runs once between
two forward passes finds nothing of itself in the caches.

Logs: one line per event, as text for people or as JSON for programs.

Whatever a message holds, it stays within its line: what could begin another one, or command a
terminal, is escaped. An event's own values travel beside its message, under `FIELDS`.
"""

import contextlib
import copy
import json
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, TextIO, assert_never

from nunatak_contract.plain_text import visible, visible_json

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


ExceptionInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)

FIELDS: Final = "nunatak_fields"
"""The attribute of a log record that holds the values of its event."""
CONTINUED: Final = "  | "
"""Begins each line of a traceback, so that none of them can pass for an event."""


class LogFormat(StrEnum):
    """How events are written."""

    TEXT = "text"
    JSON = "json"


def fields(**values: object) -> Mapping[str, object]:
    """Return the `extra` of a logging call, for the values of an event."""
    return {FIELDS: values}


class JsonFormatter(logging.Formatter):
    """Writes one JSON object per event."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of an event."""
        line: dict[str, object] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_fields_of(record),
        }
        if record.exc_info:
            line["exception"] = _trace(record.exc_info)
        return visible_json(json.dumps(line, default=str))


class TextFormatter(logging.Formatter):
    """Writes one line per event, and the traceback of an exception indented below it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of an event."""
        values = "".join(f" {name}={value}" for name, value in _fields_of(record).items())
        head = f"{_time_of(record)} {record.levelname:<8} {record.getMessage()}{values}"
        lines = [visible(head)]
        if record.exc_info:
            trace = _trace(record.exc_info)
            lines += [CONTINUED + visible(line) for line in trace.split("\n")]
        return "\n".join(lines)


def formatter_of(log_format: LogFormat) -> type[logging.Formatter]:
    """Return what writes events in a format."""
    match log_format:
        case LogFormat.TEXT:
            return TextFormatter
        case LogFormat.JSON:
            return JsonFormatter
        case _:
            assert_never(log_format)


def logging_config(log_format: LogFormat) -> dict[str, Any]:
    """Return what `logging.config.dictConfig` takes: our events and the transport's, to stderr."""
    own = {"handlers": ["stderr"], "level": "INFO", "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": formatter_of(log_format)}},
        "handlers": {"stderr": {"()": JoiningHandler, "formatter": "line"}},
        "loggers": {"nunatak_server": own, "uvicorn": own},
    }


def write_log() -> None:
    """Write the lines that are kept to be written together."""
    for handler in logging.getLogger("nunatak_server").handlers:
        handler.flush()


def leave_out_places() -> None:
    """Keep `logging` from finding out what no line of ours tells: code, thread and process.

    The standard library's own advice for programs that log much ("Optimization" in its how-to). It
    counts for the whole process.
    """
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - documented


def _trace(found: ExceptionInfo) -> str:
    """Say where code failed, without the message: one that nobody foresaw may quote its input."""
    kind, _, trace = found
    return "".join((*traceback.format_tb(trace), kind.__name__ if kind else "no exception"))


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    return getattr(record, FIELDS, {})
