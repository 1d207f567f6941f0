"""Logs: one line for each event, as text for people or as JSON for programs.

A message cannot leave its line: characters that could begin another line or command a terminal are
escaped. The values of an event travel next to the message, under `FIELDS`.

`JoiningHandler` writes many lines at once. Under overload there are hundreds of lines a second. A
separate write of each line would wait for the system, and then for the interpreter lock.
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
from types import TracebackType
from typing import Any, Final, TextIO, assert_never

from nunatak_contract.enums import LogFormat
from nunatak_contract.plain_text import visible, visible_json

ExceptionInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)

FIELDS: Final = "nunatak_fields"
"""The attribute of a log record that holds the values of its event."""
CONTINUED: Final = "  | "
"""Prefix of each line of a traceback, so that no line looks like an event."""


def fields(**values: object) -> Mapping[str, object]:
    """Return the `extra` of a logging call, for the values of an event."""
    return {FIELDS: values}


class JsonFormatter(logging.Formatter):
    """Formats each event as one JSON object."""

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
    """Formats each event as one line, with the traceback of an exception below."""

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
    """Return the formatter of a format."""
    match log_format:
        case LogFormat.TEXT:
            return TextFormatter
        case LogFormat.JSON:
            return JsonFormatter
        case _:
            assert_never(log_format)


DELAY_S: Final = 0.1
"""Longest time that an event waits before its line is written."""
MAX_EVENTS: Final = 1000


class JoiningHandler(logging.StreamHandler[TextIO]):
    """Keeps events for at most `DELAY_S`, and writes their lines in order with one write.

    A warning or an error is written at once, with all lines before it. `logging` calls `flush` at
    the end of the process, which writes the remaining lines.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        """Write to `stream`, or to the standard error without one."""
        super().__init__(stream)
        self._events = deque[logging.LogRecord]()
        self._writing = threading.RLock()
        self._has_events = threading.Event()
        self._is_closed = False
        threading.Thread(target=self._write_late, name="nunatak-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep an event, and write all lines if it must not wait."""
        try:
            self._events.append(_settled(record))
        except Exception:  # noqa: BLE001 - a log call must not fail its caller
            self.handleError(record)
        if record.levelno >= logging.WARNING or len(self._events) >= MAX_EVENTS:
            self.flush()
        elif not self._has_events.is_set():
            self._has_events.set()

    def flush(self) -> None:
        """Write the lines of all kept events."""
        with self._writing:
            # Events are taken one by one, because other threads add events meanwhile.
            events = [self._events.popleft() for _ in range(len(self._events))]
            if events:
                lines = [line for event in events if (line := self._line_of(event))]
                # There is no other place to report this; the next lines try again.
                with contextlib.suppress(OSError, ValueError):
                    self.stream.write("".join(lines))
                    self.stream.flush()

    def close(self) -> None:
        """Write the lines of all kept events, and end the writing thread."""
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
        except Exception:  # noqa: BLE001 - one event must not block the others
            self.handleError(record)
            return None


def _settled(record: logging.LogRecord) -> logging.LogRecord:
    """Return an event with its message formatted, because its arguments may change later."""
    if not record.args:
        return record
    settled = copy.copy(record)
    settled.msg, settled.args = record.getMessage(), None
    return settled


def logging_config(log_format: LogFormat) -> dict[str, Any]:
    """Return the argument of `logging.config.dictConfig`: all events go to the standard error."""
    own = {"handlers": ["stderr"], "level": "INFO", "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": formatter_of(log_format)}},
        "handlers": {"stderr": {"()": JoiningHandler, "formatter": "line"}},
        "loggers": {"nunatak_server": own, "uvicorn": own},
    }


def write_log() -> None:
    """Write the lines of all kept events."""
    for handler in logging.getLogger("nunatak_server").handlers:
        handler.flush()


def leave_out_places() -> None:
    """Stop `logging` from finding code, thread and process, which no line here shows.

    The how-to of the standard library advises this under "Optimization". The settings apply to the
    whole process.
    """
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - documented


def _trace(found: ExceptionInfo) -> str:
    """Return where code failed, without the message, which may quote an input."""
    kind, _, trace = found
    return "".join((*traceback.format_tb(trace), kind.__name__ if kind else "no exception"))


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    return getattr(record, FIELDS, {})
