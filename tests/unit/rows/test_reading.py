"""Laws of the rows of files: a bad row is a row with a problem, and no row disappears."""

import gzip
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from nunatak_contract.errors import NunatakError
from nunatak_rows import FileRow, RowFormat, file_of_rows, read_rows

BAD_ROWS = {
    "x.jsonl": (b'{"text": "a"}\n{\n\n[]\n{"text": "\xff"}\n{"text": "b"}', [1, 2, 4, 5, 6]),
    "x.csv": (b'text,more\na,b\nc\n"d"e,f\n\ng,\xff\nh,i\n', [2, 3, 4, 6, 7]),
    "lines.csv": (b'text,more\n"a\nb",c\nd\ne,f,g\nh,i\n', [2, 4, 5, 6]),
    "x.txt": (b"one\n\xff\n\nthree", [1, 2, 4]),
}


def rows_of(path: Path) -> list[FileRow]:
    return list(read_rows(file_of_rows(path), columns=RowFormat().inputs))


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_keeps_its_place_and_the_rows_after_it_are_read(
    tmp_path: Path, name: str
) -> None:
    content, numbers = BAD_ROWS[name]
    (tmp_path / name).write_bytes(content)

    found = rows_of(tmp_path / name)

    assert [row.number for row in found] == numbers
    assert not found[0].problem
    assert not found[-1].problem
    assert all(row.problem for row in found[1:-1])
    assert found[-1].end == len(content)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ('"c,d\ne,f\ng,h\n', r"x\.csv:3: a quote stays open until line 5"),
        ('"c "d", e\nf",g\n', r"x\.csv:3: a quote stays open until line 3"),
        ('"c\n\xfc",d\ne,f\n', r"x\.csv:4: not UTF-8 .*; save the file as UTF-8"),
        ('"\xfc\nc",d\ne,f\n', r"x\.csv:3: not UTF-8 .*; save the file as UTF-8"),
    ],
    ids=["open", "undoubled", "cp1252-in-a-field", "cp1252-before-the-rest-of-a-field"],
)
def test_a_quote_that_stays_open_stops_the_reader_before_rows_are_lost(
    tmp_path: Path, rows: str, reason: str
) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"text,more\na,b\n" + rows.encode("cp1252"))

    with pytest.raises(NunatakError, match=reason):
        rows_of(path)


def test_a_named_delimiter_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("text|label\none, two; three|a\n")

    (row,) = read_rows(file_of_rows(path, delimiter="|"))

    assert row.values == {"text": "one, two; three", "label": "a"}


def test_a_file_that_is_cut_off_stops_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n' * 1000)[:-20])

    with pytest.raises(NunatakError, match=r"x\.jsonl\.gz: cannot be read"):
        rows_of(path)


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv", "parquet"])
def test_the_memory_of_a_reader_does_not_grow_with_its_file(tmp_path: Path, kind: str) -> None:
    path, texts = tmp_path / f"x.{kind}", [f"text {number} " * 20 for number in range(8_000)]
    match kind:
        case "parquet":
            parquet.write_table(pa.table({"text": texts}), path, row_group_size=800)
        case "csv":
            path.write_text("text\n" + "\n".join(texts))
        case _:
            lines = "".join(f'{{"text": "{text}"}}\n' for text in texts).encode()
            path.write_bytes(gzip.compress(lines) if kind == "jsonl.gz" else lines)
    file = file_of_rows(path)

    tracemalloc.start()
    try:
        num_rows = sum(1 for _ in read_rows(file, columns=RowFormat().inputs))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert num_rows == len(texts)
    assert peak < sum(map(len, texts)) / 3
