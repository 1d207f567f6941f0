"""The console spells out control characters. An error is one line, a stable code, what to do."""

import errno
import json
import logging
import os
import re
import sys
import warnings

import pytest
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from doubles.hostile_texts import HOSTILE, obeyed
from nunatak_cli import output
from nunatak_cli.output import (
    FailureGroup,
    PlainConsole,
    Program,
    facts_table,
    print_failure,
    print_json,
    print_json_line,
    print_outcome,
    print_part,
    print_text,
    remark,
)
from nunatak_client import NotFoundError
from nunatak_contract.errors import MissingExtraError, needs_extra
from nunatak_registry import TaskNotFoundError


def table() -> Table:
    made = Table(HOSTILE, title=HOSTILE, caption=HOSTILE, caption_style="bold")
    made.add_row(Text(HOSTILE, style="red"), style="dim")
    return made


RENDERABLES: dict[str, RenderableType] = {
    "string": HOSTILE,
    "text": Text.assemble((HOSTILE, "bold"), HOSTILE),
    "table": table(),
    "panel": Panel(HOSTILE, title=Text(HOSTILE), subtitle=HOSTILE),
    "group": Group(HOSTILE, Panel(table())),
}


@pytest.mark.parametrize("name", RENDERABLES)
@pytest.mark.parametrize("soft_wrap", [False, True])
@pytest.mark.parametrize("has_styles", [False, True])
def test_no_renderable_commands_the_terminal(
    name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    soft_wrap: bool,
    has_styles: bool,
) -> None:
    monkeypatch.setenv("COLUMNS", "900")
    monkeypatch.setenv("FORCE_COLOR" if has_styles else "NO_COLOR", "1")

    PlainConsole().print(RENDERABLES[name], soft_wrap=soft_wrap)

    printed = capsys.readouterr().out
    assert obeyed(printed, has_styles=has_styles) == set()
    assert "evil[b] [red]y[/] [link=https:evil]z[/link] :smile:" in printed


def test_a_table_is_as_wide_as_what_it_spells_out(capsys: pytest.CaptureFixture[str]) -> None:
    rows = Table("a")
    rows.add_row("\x1b[2J")
    rows.add_row("plain")

    print_part(rows)

    assert len({len(line) for line in capsys.readouterr().out.splitlines()}) == 1


@pytest.mark.parametrize(("columns", "num_lines"), [(None, 1), ("40", 5)])
def test_a_row_in_a_pipe_is_one_line_unless_columns_are_given(
    columns: str | None,
    num_lines: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    rows = Table(show_header=False, box=None)
    rows.add_row("word " * 33)

    print_outcome({}, rows, as_json=False)

    assert len(capsys.readouterr().out.splitlines()) == num_lines


def test_lines_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_text("a\nb\x1b\n")

    assert capsys.readouterr().out == "a\nb\\x1b\n"


@pytest.mark.parametrize("print_it", [print_json, print_json_line])
def test_json_has_equal_values_and_commands_no_terminal(
    print_it: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(print_it)

    print_it({HOSTILE: HOSTILE, "readable": "Füße"})

    printed = capsys.readouterr().out
    assert json.loads(printed) == {HOSTILE: HOSTILE, "readable": "Füße"}
    assert obeyed(printed) == set()
    assert "Füße" in printed


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


NO_OUTPUT = "error [output_failed]: the output cannot be written"


def full(name: str) -> OSError:
    number = getattr(errno, name)
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (TaskNotFoundError("tone"), 1, "error [task_not_found]: no task 'tone' "),
        (NotFoundError(code="a_code", status=404, detail="no"), 1, "error [a_code]: no"),
        (
            full("EDQUOT"),
            1,
            f"{NO_OUTPUT}: Disk quota exceeded; make room, and repeat the command\n",
        ),
        (full("EFBIG"), 1, f"{NO_OUTPUT}: File too large\n"),
        (full("EIO"), 1, f"{NO_OUTPUT}: Input/output error\n"),
        (NotADirectoryError(20, "Not a directory", "a/x"), 1, f"{NO_OUTPUT}: a/x: Not a directory"),
        (KeyboardInterrupt(), 130, "interrupted: the command did not end; repeat it\n"),
    ],
    ids=repr,
)
def test_an_error_that_is_no_bug_is_one_line(
    error: BaseException,
    status: int,
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(output, "_drop_output", lambda: None)
    with pytest.raises(SystemExit) as left:
        program_that_raises(error)(["fail"])

    assert left.value.code == status
    printed = capsys.readouterr().err
    assert printed.startswith(told)
    assert printed.count("\n") == 1


def test_missing_module_names_the_extra_to_install() -> None:
    with (
        pytest.raises(MissingExtraError, match=re.escape("pip install 'nunatak[server]'")),
        needs_extra("server"),
    ):
        raise ModuleNotFoundError("No module named 'fastapi.responses'", name="fastapi.responses")


def test_missing_module_of_our_own_is_a_bug() -> None:
    with pytest.raises(ModuleNotFoundError), needs_extra("server"):
        raise ModuleNotFoundError("No module named 'nunatak_server.x'", name="nunatak_server.x")


def test_a_failure_of_hostile_words_is_one_line_printed_in_full(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_failure(HOSTILE, f"rings\a\nonce [bold]{'x' * 300}")

    out, printed = capsys.readouterr()
    assert (out, obeyed(printed)) == ("", set())
    assert "evil[b] [red]y[/]" in printed
    assert printed.endswith(f"rings\\x07 once [bold]{'x' * 300}\n")
    assert printed.count("\n") == 1


@pytest.fixture(name="process")
def undo_changes_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(logging.lastResort, "formatter", None)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("kind", [ForeignError, ValueError, OSError])
def test_a_traceback_says_all_and_commands_no_terminal(
    kind: type[Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        program_that_raises(kind(HOSTILE))(["fail"])

    printed = capsys.readouterr().err
    assert left.value.code == 1
    assert printed.startswith("Traceback (most recent call last):\n")
    assert "in fail\n" in printed
    assert f"{kind.__name__}: evil[b] [red]y[/]" in printed
    assert obeyed(printed) == set()


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_a_machine_without_memory_is_one_line_with_advice(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        program_that_raises(error)(["fail"])

    assert left.value.code == 1
    assert capsys.readouterr().err.startswith("error [machine_exhausted]: the machine ")


@pytest.mark.usefixtures("process")
def test_warnings_and_remarks_of_other_packages_command_no_terminal() -> None:
    with pytest.raises(SystemExit):
        program_that_raises(ValueError())(["fail"])

    warned = warnings.formatwarning(HOSTILE, UserWarning, "other.py", 1)
    record = logging.LogRecord("other", logging.WARNING, "other.py", 1, HOSTILE, (), None)
    assert logging.lastResort is not None
    for printed in (warned, logging.lastResort.format(record)):
        assert "evil[b]" in printed
        assert obeyed(printed) == set()


LONG = "word " * 40


@pytest.mark.parametrize(
    "part", [LONG, Text(LONG), facts_table({"said": LONG})], ids=["text", "styled", "table"]
)
@pytest.mark.parametrize("is_error", [False, True])
def test_a_pipe_has_each_long_line_whole(
    part: RenderableType,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_error: bool,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)

    (remark if is_error else print_part)(part)

    printed = capsys.readouterr()
    assert LONG.strip() in (printed.err if is_error else printed.out)
