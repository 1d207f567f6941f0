import errno
import io
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from doubles.hostile_texts import HOSTILE, obeyed
from nunatak_contract.enums import LogFormat
from nunatak_server.telemetry.logs import (
    DELAY_S,
    MAX_EVENTS,
    JoiningHandler,
    JsonFormatter,
    TextFormatter,
    fields,
    logging_config,
    ready_line,
)

FORGED = "name\r\n2026-01-01 INFO forged\x1b[2J\u2028\u202e\ud800"


def record(message: str, **values: object) -> logging.LogRecord:
    made = logging.LogRecord("nunatak_server.x", logging.INFO, "f.py", 1, message, (), None)
    for name, value in fields(**values).items():
        setattr(made, name, value)
    return made


def failed(text: str) -> logging.LogRecord:
    made = record("failed")
    try:
        int(text)
    except ValueError:
        made.exc_info = sys.exc_info()
    return made


class Stream(io.StringIO):
    """Counts the writes."""

    num_writes = 0

    def write(self, text: str) -> int:
        self.num_writes += 1
        return super().write(text)


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def log(stream: Stream) -> Iterator[logging.Logger]:
    handler, logger = JoiningHandler(stream), logging.getLogger("joining")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield logger
    logger.removeHandler(handler)
    handler.close()


def written(stream: Stream, num_lines: int) -> list[str]:
    end = time.monotonic() + 100 * DELAY_S
    while stream.getvalue().count("\n") < num_lines and time.monotonic() < end:
        time.sleep(0.01)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
@pytest.mark.parametrize("text", [FORGED, HOSTILE])
def test_an_event_with_any_content_is_one_line_and_commands_no_terminal(
    formatter: logging.Formatter, text: str
) -> None:
    name = text.encode("utf-8", "ignore").decode()

    line = formatter.format(record(text, **{name: name}, tasks=[name]))

    assert len(line.splitlines()) == 1
    assert obeyed(line) == set()
    if isinstance(formatter, JsonFormatter) and name == text:
        found = json.loads(line)
        assert (found["event"], found[name], found["tasks"]) == (text, name, [name])
        assert (found["level"], found["logger"]) == ("info", "nunatak_server.x")
        assert found["time"].endswith("+00:00")


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_an_exception_is_reported_by_type_and_place_without_its_message(
    formatter: logging.Formatter,
) -> None:
    text = formatter.format(failed("swordfish"))

    assert "ValueError" in text
    assert "int(text)" in text
    assert "swordfish" not in text
    _, *others = text.split("\n")
    assert bool(others) == isinstance(formatter, TextFormatter)
    # No line of a traceback passes for an event.
    assert all(it.startswith("  | ") for it in others)


@pytest.mark.parametrize("log_format", LogFormat)
def test_the_transport_writes_as_we_do(log_format: LogFormat) -> None:
    config = logging_config(log_format)

    assert config["loggers"]["uvicorn"] == config["loggers"]["nunatak_server"]


def test_the_line_that_the_server_is_ready_has_the_format_of_the_log() -> None:
    address = "http://127.0.0.1:8080"

    told = json.loads(ready_line(address, LogFormat.JSON))

    assert ready_line(address, LogFormat.TEXT) == f"Nunatak is ready on {address}\n"
    assert (told["event"], told["address"]) == ("ready", address)


def test_lines_are_written_soon_and_together(log: logging.Logger, stream: Stream) -> None:
    for number in range(50):
        log.info("%d", number)

    assert written(stream, 50) == list(map(str, range(50)))
    assert stream.num_writes < 25

    log.info("later")
    assert written(stream, 51)[-1] == "later"


def test_a_warning_is_written_at_once_behind_all_before_it(
    log: logging.Logger, stream: Stream
) -> None:
    log.info("before")
    log.warning("now")

    assert stream.getvalue() == "before\nnow\n"


def test_what_is_kept_is_bounded(
    request: pytest.FixtureRequest, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The writing thread sleeps during the whole test.
    monkeypatch.setattr("nunatak_server.telemetry.logs.DELAY_S", 3600.0)
    log: logging.Logger = request.getfixturevalue("log")

    for number in range(2 * MAX_EVENTS):
        log.info("%d", number)

    assert stream.getvalue().count("\n") >= MAX_EVENTS


def test_lines_of_many_threads_are_written_once_each(log: logging.Logger, stream: Stream) -> None:
    def tell(name: str) -> None:
        for number in range(300):
            log.log(logging.WARNING if number % 50 == 0 else logging.INFO, "%s %d", name, number)

    with ThreadPoolExecutor() as pool:
        list(pool.map(tell, "abcd"))

    lines = written(stream, 1200)
    for name in "abcd":
        own = [line for line in lines if line.startswith(name)]
        assert own == [f"{name} {number}" for number in range(300)]


def test_an_event_is_logged_with_its_values_at_that_time(
    log: logging.Logger, stream: Stream
) -> None:
    values = [1]
    log.info("%s", values)
    values.append(2)

    assert written(stream, 1) == ["[1]"]


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
def test_an_event_that_cannot_be_formatted_delays_no_other(
    log: logging.Logger, stream: Stream, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    log.log(level, "%d", "no number")
    log.log(level, "told")

    assert written(stream, 1) == ["told"]


def test_a_stream_that_fails_within_a_line_ends_nothing_and_joins_no_other_line_to_it(
    log: logging.Logger, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(text: str) -> int:
        io.StringIO.write(stream, text.strip()[:2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(stream, "write", fail)
        log.info("lost")
        time.sleep(2 * DELAY_S)
    log.info("written")

    assert written(stream, 2) == ["lo", "written"]


OWN = "log = logging.Logger('x'); log.addHandler(logs.JoiningHandler())"
# As in a fleet of `--processes`: the template logs, and then each process that forks from it.
FORKED = """log = logs.SERVER
for handler in (logging.StreamHandler, logs.JoiningHandler):
    logs.log_everything(logs.LogFormat.JSON, handler)"""


@pytest.mark.parametrize(
    ("begin", "last"),
    [(OWN, "the last\n"), (FORKED, '"event": "the last"}\n')],
    ids=["handler", "json-in-a-fork"],
)
def test_the_end_of_a_process_loses_no_line(begin: str, last: str) -> None:
    code = f"""import logging
from nunatak_server.telemetry import logs
{begin}
log.info('the last')"""

    ended = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert ended.stderr.endswith(last)
    assert ended.stderr.count("\n") == 1
