"""The console spells out control characters in every text and every wrapping."""

import json

import pytest
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from doubles.hostile_texts import HOSTILE, obeyed
from nunatak_cli.output import (
    PlainConsole,
    facts_table,
    print_json,
    print_json_line,
    print_outcome,
    print_part,
    print_text,
    remark,
)


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


LONG = "word " * 40


@pytest.mark.parametrize("part", [LONG, Text(LONG), facts_table({"said": LONG})], ids=type)
@pytest.mark.parametrize("is_error", [False, True])
def test_a_pipe_has_each_long_line_whole(
    part: RenderableType, capsys: pytest.CaptureFixture[str], *, is_error: bool
) -> None:
    (remark if is_error else print_part)(part)

    printed = capsys.readouterr()
    assert LONG.strip() in (printed.err if is_error else printed.out)
