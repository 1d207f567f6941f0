"""Logs: one line for each event, as text for people or as JSON for programs.

A message cannot leave its line: characters that could begin another line or command a terminal are
escaped. The values of an event travel next to the message, under `FIELDS`.

`JoiningHandler` writes many lines at once. Under overload there are hundreds of lines a second. A
separate write of each line would wait for the system, and then for the interpreter lock.
"""

import contextlib
import copy
import io
import json
import logging
import logging.config
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, TextIO

from nunatak_contract.enums import LogFormat
from nunatak_contract.plain_text import visible, visible_json

ExceptionInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)

FIELDS: Final = "nunatak_fields"
"""The attribute of a log record that holds the values of its event."""
SERVER: Final = logging.getLogger("nunatak_server")
OWN_LOGGERS: Final = (SERVER.name, "uvicorn")
CONTINUED: Final = "  | "
"""Prefix of each line of a traceback, so that no line looks like an event."""


def fields(**values: object) -> Mapping[str, object]:
    return {FIELDS: values}


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
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
        values = "".join(f" {name}={value}" for name, value in _fields_of(record).items())
        head = f"{_time_of(record)} {record.levelname:<8} {record.getMessage()}{values}"
        lines = [visible(head)]
        if record.exc_info:
            trace = _trace(record.exc_info)
            lines += [CONTINUED + visible(line) for line in trace.split("\n")]
        return "\n".join(lines)


FORMATTERS: Final = {LogFormat.TEXT: TextFormatter, LogFormat.JSON: JsonFormatter}


DELAY_S: Final = 0.1
"""Longest time that an event waits before its line is written."""
MAX_EVENTS: Final = 1000


class JoiningHandler(logging.StreamHandler[TextIO]):
    """Keeps events for at most `DELAY_S`, and writes their lines in order with one write.

    A warning or an error is written at once, with all lines before it. `logging` calls `flush` at
    the end of the process, which writes the remaining lines.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._events = deque[logging.LogRecord]()
        self._writing = threading.RLock()
        self._has_events = threading.Event()
        self._is_closed = False
        self._head = ""
        """Ends the line that a write has begun and a full disk has cut, before the next lines."""
        threading.Thread(target=self._write_late, name="nunatak-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._events.append(_settled(record))
        except Exception:  # noqa: BLE001 - a log call must not fail its caller
            self.handleError(record)
        if record.levelno >= logging.WARNING or len(self._events) >= MAX_EVENTS:
            self.flush()
        elif not self._has_events.is_set():
            self._has_events.set()

    def flush(self) -> None:
        with self._writing:
            # Events are taken one by one, because other threads add events meanwhile.
            events = [self._events.popleft() for _ in range(len(self._events))]
            if events:
                lines = [line for event in events if (line := self._line_of(event))]
                # There is no other place to report this; the next lines try again.
                with contextlib.suppress(OSError, ValueError):
                    head, self._head = self._head, self.terminator
                    self.stream.write(head + "".join(lines))
                    self.stream.flush()
                    self._head = ""

    def close(self) -> None:
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


NewHandler = Callable[[], logging.Handler]


def logging_config(log_format: LogFormat, handler: NewHandler = JoiningHandler) -> dict[str, Any]:
    own = {"handlers": ["stderr"], "level": "INFO", "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": FORMATTERS[log_format]}},
        "handlers": {"stderr": {"()": handler, "formatter": "line"}},
        "root": {"handlers": ["stderr"], "level": "WARNING"},
        "loggers": dict.fromkeys(OWN_LOGGERS, own),
    }


def write_log() -> None:
    for handler in SERVER.handlers:
        handler.flush()


def log_everything(log_format: LogFormat, handler: NewHandler = JoiningHandler) -> None:
    """Let this process, its libraries and warnings write their log; with JSON all streams, too."""
    # The streams of a forked process write to the log already, which must not write to itself.
    sys.stdout, sys.stderr = map(LoggedText.replaced_by, (sys.stdout, sys.stderr))
    logging.config.dictConfig(logging_config(log_format, handler))
    logging.captureWarnings(capture=True)
    if log_format is LogFormat.JSON:
        _give_up_own_handlers()
        sys.stdout, sys.stderr = LoggedText("stdout", sys.stdout), LoggedText("stderr", sys.stderr)
        sys.excepthook = lambda _kind, error, _trace: log_uncaught(error)
        threading.excepthook = _log_uncaught_in_thread
        sys.unraisablehook = _log_unraisable


class LoggedText(io.TextIOBase):
    """A standard stream whose lines become events of the log."""

    def __init__(self, name: str, replaced: TextIO) -> None:
        self._logger = logging.getLogger(name)
        self.replaced = replaced
        self._begun = threading.local()
        """By thread, the text of a line that has not ended."""

    @staticmethod
    def replaced_by(stream: TextIO) -> TextIO:
        return stream.replaced if isinstance(stream, LoggedText) else stream

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        *lines, rest = (getattr(self._begun, "text", "") + text).split("\n")
        self._begun.text = rest
        # A handler that fails writes its error here. The error must not reach the handler again.
        if not getattr(self._begun, "is_logging", False):
            self._begun.is_logging = True
            try:
                for line in filter(str.strip, lines):
                    self._logger.warning("%s", line)
            finally:
                self._begun.is_logging = False
        return len(text)


def ready_line(address: str, log_format: LogFormat) -> str:
    if log_format is LogFormat.TEXT:
        return f"Nunatak is ready on {address}\n"
    ready = logging.LogRecord(__name__, logging.INFO, "", 0, "ready", None, None)
    setattr(ready, FIELDS, {"address": address})
    return JsonFormatter().format(ready) + "\n"


def print_address(address: str, *, log_format: LogFormat) -> None:
    # With JSON, `sys.stdout` writes to the log.
    if (output := sys.__stdout__) is not None:
        output.write(ready_line(address, log_format))
        output.flush()


def log_failure(code: str, message: str) -> None:
    SERVER.error("the server ends: %s", message, extra=fields(code=code))


def log_uncaught(error: BaseException) -> None:
    SERVER.critical("uncaught exception: %s", error, exc_info=error)


def _give_up_own_handlers() -> None:
    """Let the loggers of imported libraries write to our log instead of their own handlers."""
    for name in list(logging.root.manager.loggerDict):
        logger = logging.getLogger(name)
        if name not in OWN_LOGGERS and logger.handlers:
            logger.handlers.clear()
            logger.propagate = True


def _log_uncaught_in_thread(failed: threading.ExceptHookArgs) -> None:
    name = "a thread" if failed.thread is None else failed.thread.name
    SERVER.critical("uncaught exception in %s", name, exc_info=failed.exc_value)


def _log_unraisable(failed: "sys.UnraisableHookArgs") -> None:
    message = failed.err_msg or "exception in code that cannot raise it"
    SERVER.error("%s", message, exc_info=failed.exc_value)


def leave_out_places() -> None:
    """Stop `logging` from finding code, thread and process, which no line here shows."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001


def _trace(found: ExceptionInfo) -> str:
    """Return where code failed, without the message, which may quote an input."""
    kind, _, trace = found
    return "".join((*traceback.format_tb(trace), kind.__name__ if kind else "no exception"))


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    return getattr(record, FIELDS, {})
