"""Laws of errors: one line, a stable code, what to do."""

import errno
import logging
import os
import re
import sys
import warnings
from pathlib import Path

import pytest

from doubles.hostile_texts import HOSTILE, obeyed
from nunatak_cli import failures
from nunatak_cli.failures import FailureGroup, Program, print_failure
from nunatak_client import NotFoundError
from nunatak_contract.errors import MissingExtraError, needs_extra
from nunatak_registry import TaskNotFoundError


def program_that_raises(error: BaseException) -> Program:
    program = Program(cls=FailureGroup)

    @program.callback()
    def group() -> None:
        pass

    @program.command()
    def fail() -> None:
        raise error

    return program


class ForeignError(Exception):
    """An error with a code, from another project."""

    code = "foreign"


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(TaskNotFoundError("tone"), id="registry"),
        pytest.param(NotFoundError(code="task_not_found", status=404, detail="no"), id="client"),
    ],
)
def test_an_error_of_ours_ends_the_command_with_its_code(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        program_that_raises(error)(["fail"])

    assert left.value.code == 1
    assert capsys.readouterr().err.startswith("error [task_not_found]: no")


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EFBIG", "EIO"])
def test_an_output_that_takes_no_more_is_one_line(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    number = getattr(errno, name)
    monkeypatch.setattr(failures, "_drop_output", lambda: None)
    with pytest.raises(SystemExit) as left:
        program_that_raises(OSError(number, os.strerror(number)))(["fail"])

    assert left.value.code == 1
    expected = f"error [output_failed]: the output cannot be written: {os.strerror(number)}\n"
    assert capsys.readouterr().err == expected


def test_an_interrupt_is_told_and_has_the_status_of_its_signal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as left:
        program_that_raises(KeyboardInterrupt())(["fail"])

    assert left.value.code == 130
    assert capsys.readouterr().err == "interrupted: the command did not end; repeat it\n"


def test_an_error_of_a_file_is_one_line_with_its_path(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotADirectoryError) as caught:
        (Path(__file__) / "x").mkdir()

    with pytest.raises(SystemExit) as left:
        program_that_raises(caught.value)(["fail"])

    assert left.value.code == 1
    place = f"{__file__}/x: Not a directory"
    assert capsys.readouterr().err == (
        f"error [output_failed]: the output cannot be written: {place}\n"
    )


@pytest.mark.parametrize("error", [ForeignError("x"), ValueError("x"), OSError("x")])
def test_any_other_error_keeps_its_traceback(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        program_that_raises(error)(["fail"])

    assert capsys.readouterr().err.startswith("Traceback (most recent call last):\n")


def test_failure_with_any_message_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_failure("some_code", "first [bold]line\nsecond line " + "x" * 300)

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"error [some_code]: first [bold]line second line {'x' * 300}\n"


def test_missing_module_names_the_extra_to_install() -> None:
    with (
        pytest.raises(MissingExtraError, match=re.escape("pip install 'nunatak[server]'")),
        needs_extra("server"),
    ):
        raise ModuleNotFoundError("No module named 'fastapi.responses'", name="fastapi.responses")


def test_missing_module_of_our_own_is_a_bug() -> None:
    with pytest.raises(ModuleNotFoundError), needs_extra("server"):
        raise ModuleNotFoundError("No module named 'nunatak_server.x'", name="nunatak_server.x")


def test_a_failure_of_hostile_words_is_printed_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    print_failure(HOSTILE, "rings\a once")

    printed = capsys.readouterr().err
    assert obeyed(printed) == set()
    assert "evil[b] [red]y[/]" in printed
    assert printed.endswith("rings\\x07 once\n")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Program:
    """A program that fails in hostile words; its changes to the process are undone."""
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(logging.lastResort, "formatter", None)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    return program_that_raises(ValueError(HOSTILE))


def test_a_traceback_says_all_and_commands_no_terminal(
    failing: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        failing(["fail"])

    printed = capsys.readouterr().err
    assert left.value.code == 1
    assert printed.startswith("Traceback (most recent call last):\n")
    assert "in fail\n" in printed
    assert "ValueError: evil[b] [red]y[/]" in printed
    assert obeyed(printed) == set()


def test_warnings_and_remarks_of_other_packages_command_no_terminal(failing: Program) -> None:
    with pytest.raises(SystemExit):
        failing(["fail"])

    warned = warnings.formatwarning(HOSTILE, UserWarning, "other.py", 1)
    record = logging.LogRecord("other", logging.WARNING, "other.py", 1, HOSTILE, (), None)
    assert logging.lastResort is not None
    for printed in (warned, logging.lastResort.format(record)):
        assert "evil[b]" in printed
        assert obeyed(printed) == set()
