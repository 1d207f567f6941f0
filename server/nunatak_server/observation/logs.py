"""Logs: one line per event, as text for people or as JSON for programs.

Whatever a message holds, it stays within its line: what could begin another one, or command a
terminal, is escaped. An event's own values travel beside its message, under `FIELDS`.
"""

import json
import logging
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, assert_never

from nunatak_registry.plain_text import visible, visible_json
from nunatak_server.observation.log_handler import JoiningHandler

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
