"""Events of the server's log, as programs read them."""

import contextlib
import json
import logging
from collections.abc import Generator
from typing import Any

import pytest

from nunatak_server.telemetry.logs import JsonFormatter


class EventList(logging.Handler):
    """Keeps the log lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def named(self, event: str) -> list[dict[str, Any]]:
        return [found for line in self.lines if (found := json.loads(line))["event"] == event]


@contextlib.contextmanager
def logged_events(level: int = logging.INFO) -> Generator[EventList]:
    """Collect the server's log events while the block runs."""
    logger, events = logging.getLogger("nunatak_server"), EventList()
    before = logger.level
    logger.addHandler(events)
    logger.setLevel(level)
    try:
        yield events
    finally:
        logger.setLevel(before)
        logger.removeHandler(events)


def catch_from(
    names: tuple[str, ...], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give `caplog` what these loggers do not pass on, until the test ends."""
    for name in names:
        logger = logging.getLogger(name)
        monkeypatch.setattr(logger, "handlers", [*logger.handlers, caplog.handler])
