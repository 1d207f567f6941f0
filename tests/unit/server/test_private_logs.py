import logging
import sys

from nunatak_server.private_logs import WithoutMessages
from nunatak_server.serve import logging_config


def failed(text: str) -> logging.LogRecord:
    try:
        int(text)
    except ValueError:
        return logging.LogRecord("x", logging.ERROR, __file__, 1, "it failed", (), sys.exc_info())
    raise AssertionError


def test_an_exception_is_logged_by_type_and_place_without_its_message() -> None:
    record = failed("swordfish")

    assert WithoutMessages().filter(record)

    line = logging.Formatter().format(record)
    assert "ValueError" in line
    assert "int(text)" in line
    assert "swordfish" not in line


def test_every_handler_of_the_server_leaves_messages_out() -> None:
    config = logging_config()

    assert config["handlers"]
    assert all("private" in handler["filters"] for handler in config["handlers"].values())
