"""Lines are written together and soon, no line is lost, and a warning is written at once."""

import io
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from nunatak_server.telemetry.logs import DELAY_S, MAX_EVENTS, JoiningHandler


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

    threads = [threading.Thread(target=tell, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

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


def test_a_stream_that_fails_ends_nothing(
    log: logging.Logger, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> int:
        raise BrokenPipeError

    with monkeypatch.context() as broken:
        broken.setattr(stream, "write", fail)
        log.info("lost")
        time.sleep(2 * DELAY_S)
    log.info("written")

    assert written(stream, 1) == ["written"]


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
