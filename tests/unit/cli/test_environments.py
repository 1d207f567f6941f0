"""Laws of the command in users' environments: other encodings, full and closed outputs."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from doubles.damage import files_of_at_most
from doubles.examples import load_examples
from nunatak_cli.output import print_json
from nunatak_contract.errors import NunatakError
from nunatak_rows import Dialect, check_rows_file, file_of_rows, read_rows, write_rows
from nunatak_rows.written import dialect_like

PROGRAM = (
    "from nunatak_cli.output import FailureGroup, Program\n"
    "from nunatak_cli.output import print_part\n"
    "program = Program(cls=FailureGroup)\n"
    "program.callback()(lambda: None)\n"
    "said = 'Gr\\u00fc\\u00dfe \\u4e2d'\n"
    "program.command('say')(lambda: [print_part(said) for _ in range(%d)])\n"
    "program(['say'])"
)
"""A program that prints some lines with characters that few encodings have."""


def run(num_lines: int, **options: object) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-c", PROGRAM % num_lines]
    return subprocess.run(command, stderr=subprocess.PIPE, check=False, **options)  # noqa: S603 - our own interpreter  # pyrefly: ignore[no-matching-overload]


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [("cp1252", b"Gr\xfc\xdfe \\u4e2d"), ("utf-8", "Grüße \u4e2d".encode())],
)
def test_a_terminal_of_any_encoding_shows_every_text(encoding: str, expected: bytes) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}

    ran = run(1, stdout=subprocess.PIPE, env=environment)

    assert (ran.returncode, ran.stdout.rstrip(), ran.stderr) == (0, expected, b"")


@pytest.mark.parametrize("num_lines", [1, 5_000])
def test_an_output_that_is_full_is_one_line(num_lines: int) -> None:
    with Path("/dev/full").open("wb") as full:
        ran = run(num_lines, stdout=full)

    assert ran.returncode == 1
    assert ran.stderr == (
        b"error [output_failed]: the output cannot be written: No space left on device; "
        b"make room, and repeat the command\n"
    )


@pytest.mark.parametrize("num_lines", [1, 5_000])
def test_a_reader_that_leaves_ends_the_command_quietly(num_lines: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)

    ran = run(num_lines, stdout=writing)
    os.close(writing)

    assert ran.returncode == 1
    assert b"Traceback" not in ran.stderr


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_json_is_json_in_every_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding=encoding, errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", stream)
    value = {"text": "é \u4e2d \U0001f600 \udcff"}

    print_json(value)
    stream.flush()

    assert json.loads(written.getvalue().decode(encoding)) == value


def test_a_file_whose_name_is_no_utf8_is_read_and_named(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"gr\xfc\xdfe.csv")
    path.write_text("text,label\nx,a\n,b\n")

    with pytest.raises(NunatakError, match=r"^gr\\xfc\\xdfe.csv:3: 'text' is empty"):
        load_examples(path)


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_that_is_written_has_the_dialect_of_the_csv_that_was_read(
    tmp_path: Path, mark: str, delimiter: str
) -> None:
    read, written = tmp_path / "in.csv", tmp_path / "out.csv"
    read.write_text(f"{mark}text{delimiter}label\nx{delimiter}a\n")
    dialect = dialect_like(read, delimiter=None, escapes_formulas=False)

    write_rows("--out", written, [{"text": f"a{delimiter}b\nc", "n": 1}, {"more": [1]}], dialect)

    assert written.read_bytes().startswith(f"{mark}text{delimiter}n{delimiter}more\r\n".encode())
    rows = list(read_rows(file_of_rows(written)))
    assert rows[0].values == {"text": f"a{delimiter}b\nc", "n": "1", "more": ""}
    assert rows[1].values == {"text": "", "n": "", "more": "[1]"}


@pytest.mark.parametrize("text", ["=1+1", "+a", "-a", "@a", "\ta", "\ra"])
def test_formulas_are_escaped_on_demand_and_numbers_never(text: str) -> None:
    plain, escaped = Dialect().lines([[text]]), Dialect(escapes_formulas=True).lines([[text]])

    assert next(csv.reader([plain.decode()])) == [text]
    assert next(csv.reader([escaped.decode()])) == [f"'{text}"]
    assert Dialect(escapes_formulas=True).lines([["-1.5", -2, "a=b"]]) == b"-1.5,-2,a=b\r\n"


def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    with pytest.raises(NunatakError, match=r"--out expects a file FILE.csv or FILE.jsonl"):
        check_rows_file("--out", tmp_path / "x.txt", data)
    with pytest.raises(NunatakError, match=r"--out .* would overwrite the examples"):
        check_rows_file("--out", tmp_path / "." / "data.csv", data)
    with pytest.raises(NunatakError, match=r"--out .* cannot be written: No such file"):
        write_rows("--out", tmp_path / "none" / "x.csv", [])


def test_a_full_disk_leaves_the_rows_of_an_earlier_run(tmp_path: Path) -> None:
    out = tmp_path / "x.jsonl"
    write_rows("--out", out, [{"text": "a"}])

    with files_of_at_most(20), pytest.raises(NunatakError, match="cannot be written"):
        write_rows("--out", out, [{"text": "b" * 20}])

    assert [(it, it.read_text()) for it in tmp_path.iterdir()] == [(out, '{"text": "a"}\n')]
