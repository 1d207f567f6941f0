import json
import logging
import sys

import pytest

from doubles.hostile_texts import HOSTILE, obeyed
from nunatak_contract.enums import LogFormat
from nunatak_server.telemetry.logs import (
    FIELDS,
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


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_an_event_with_any_content_is_one_line(formatter: logging.Formatter) -> None:
    line = formatter.format(record(FORGED, task=FORGED.encode("utf-8", "ignore").decode()))

    assert len(line.splitlines()) == 1
    assert "\x1b" not in line


def test_a_json_event_is_an_object_with_its_values() -> None:
    found = json.loads(JsonFormatter().format(record("request", status=200, tasks=["tone/3"])))

    assert found["event"] == "request"
    assert (found["level"], found["logger"]) == ("info", "nunatak_server.x")
    assert (found["status"], found["tasks"]) == (200, ["tone/3"])
    assert found["time"].endswith("+00:00")


def test_a_traceback_cannot_pass_for_an_event() -> None:
    lines = TextFormatter().format(failed("swordfish")).split("\n")

    assert len(lines) > 1
    assert all(line.startswith("  | ") for line in lines[1:])


def test_a_json_traceback_stays_in_its_object() -> None:
    line = JsonFormatter().format(failed("swordfish"))

    assert "\n" not in line
    assert "int(text)" in json.loads(line)["exception"]


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_an_exception_is_reported_by_type_and_place_without_its_message(
    formatter: logging.Formatter,
) -> None:
    line = formatter.format(failed("swordfish"))

    assert "ValueError" in line
    assert "swordfish" not in line


@pytest.mark.parametrize("log_format", LogFormat)
def test_the_transport_writes_as_we_do(log_format: LogFormat) -> None:
    config = logging_config(log_format)

    assert config["loggers"]["uvicorn"] == config["loggers"]["nunatak_server"]


def test_the_line_that_the_server_is_ready_has_the_format_of_the_log() -> None:
    address = "http://127.0.0.1:8080"

    told = json.loads(ready_line(address, LogFormat.JSON))

    assert ready_line(address, LogFormat.TEXT) == f"Nunatak is ready on {address}\n"
    assert (told["event"], told["address"]) == ("ready", address)


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_no_event_commands_a_terminal(formatter: logging.Formatter) -> None:
    made = failed(HOSTILE)
    made.msg = HOSTILE
    setattr(made, FIELDS, {HOSTILE: HOSTILE, "tasks": [HOSTILE]})

    line = formatter.format(made)

    assert obeyed(line) == set()
    assert "evil[b]" in line


def test_a_json_event_says_exactly_what_was_logged() -> None:
    found = json.loads(JsonFormatter().format(record(HOSTILE, task=HOSTILE)))

    assert (found["event"], found["task"]) == (HOSTILE, HOSTILE)
