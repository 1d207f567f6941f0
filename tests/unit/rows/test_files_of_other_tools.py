"""Laws of files as other programs write them: each is read right, or refused in clear words."""

import gzip
from collections.abc import Callable
from csv import QUOTE_ALL
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from datasets import Dataset
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from doubles.examples import load_examples
from nunatak_cli.asking.predictors import open_inputs
from nunatak_contract.errors import NunatakError
from nunatak_rows import RowFormat, file_of_rows, files, read_rows, row_input
from nunatak_rows.files import MAX_ROW_BYTES

TEXTS = ["one", 'say "hi";\nand, then\tgo', "Grüße \U0001f600 \u4e2d", "x" * 200_000]
LABELS = ["a", "b", "a", "b"]
DATA = {"text": TEXTS, "label": LABELS, "size": [1, None, 3, 4]}
PANDAS = pd.DataFrame(DATA)
POLARS = pl.DataFrame(DATA)
ARROW = pa.table(DATA)


def by_duckdb(options: str) -> Callable[[Path], object]:
    return lambda path: duckdb.from_arrow(ARROW).query("t", f"COPY t TO '{path}' ({options})")


def arrow_text(kind: object) -> Callable[[Path], object]:
    table = pa.table({**DATA, "text": pa.array(TEXTS, kind), "label": pa.array(LABELS, kind)})
    return lambda path: parquet.write_table(table, path)


def by_arrow(path: Path) -> None:
    arrow_csv.write_csv(ARROW, path)


def by_excel(path: Path, *, prefix: str = "") -> None:
    text = PANDAS.to_csv(index=False, sep=";", lineterminator="\r\n")
    path.write_bytes(f"{prefix}{text}".encode("utf-8-sig"))


def by_spark(path: Path) -> None:
    # Spark leaves out the fields without a value.
    rows = [{k: v for k, v in row.items() if v is not None} for row in POLARS.to_dicts()]
    path.write_bytes(
        b"\n".join(pl.DataFrame([row]).write_ndjson().strip().encode() for row in rows)
    )


WRITTEN: dict[str, Callable[[Path], object]] = {
    "pandas.csv": lambda it: PANDAS.to_csv(it, index=False),
    "pandas-index.csv": PANDAS.to_csv,
    "pandas.tsv": lambda it: PANDAS.to_csv(it, sep="\t", index=False),
    "pandas-semicolons.tsv": lambda it: PANDAS.to_csv(it, sep=";", index=False),
    "pandas-tabs.csv": lambda it: PANDAS.to_csv(it, sep="\t", index=False),
    "pandas-commas.tsv": lambda it: PANDAS.to_csv(it, index=False),
    "pandas-quoted.csv": lambda it: PANDAS.rename(columns={"size": "a;b;c;d"}).to_csv(
        it, index=False, quoting=QUOTE_ALL
    ),
    "pandas-mark.csv": lambda it: PANDAS.to_csv(it, sep=";", index=False, encoding="utf-8-sig"),
    "pandas.jsonl": lambda it: PANDAS.to_json(it, orient="records", lines=True),
    "pandas.jsonl.gz": lambda it: PANDAS.to_json(it, orient="records", lines=True),
    "pandas.parquet": PANDAS.to_parquet,
    "pandas-categories.parquet": lambda it: PANDAS.astype({"label": "category"}).to_parquet(it),
    "polars.csv": POLARS.write_csv,
    "polars.jsonl": POLARS.write_ndjson,
    "polars.parquet": POLARS.write_parquet,
    "polars-categories.parquet": lambda it: POLARS.cast({"label": pl.Categorical}).write_parquet(
        it
    ),
    "duckdb.csv": by_duckdb("HEADER"),
    "duckdb.tsv": by_duckdb("HEADER, DELIMITER '\t'"),
    "duckdb.jsonl": by_duckdb("FORMAT json"),
    "duckdb.parquet": by_duckdb("FORMAT parquet, COMPRESSION zstd"),
    "arrow.csv": by_arrow,
    "arrow-large.parquet": arrow_text(pa.large_string()),
    "arrow-view.parquet": arrow_text(pa.string_view()),
    "arrow-dictionary.parquet": arrow_text(pa.dictionary(pa.int8(), pa.string())),
    "datasets.parquet": lambda it: (
        Dataset.from_pandas(PANDAS).class_encode_column("label").to_parquet(it)
    ),
    "excel.csv": by_excel,
    "excel-sep.csv": lambda it: by_excel(it, prefix="sep=;\r\n"),
    "spark.jsonl": by_spark,
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_file_of_another_tool_gives_its_rows(tmp_path: Path, name: str) -> None:
    WRITTEN[name](tmp_path / name)

    examples = load_examples(tmp_path / name)
    rows = read_rows(file_of_rows(tmp_path / name), columns=RowFormat().inputs)

    # Excel ends all lines with CRLF, also those within a field.
    expected = [it.replace("\n", "\r\n") if name.startswith("excel") else it for it in TEXTS]
    assert [it.text.replace("\r\n", "\n") for it in examples] == TEXTS
    assert [it.label for it in examples] == LABELS
    assert [row_input(row, RowFormat()) for row in rows] in (TEXTS, expected)


BAD = '{"text": "x", "label": "a", "n": %s}\n'
TWICE = pa.Table.from_arrays([pa.array(["a"])] * 3, names=["text", "label", "label"])
FAR = pa.table({"text": ["a"], "label": ["b"], "at": pa.array([2**62], pa.timestamp("us"))})
REFUSED: dict[str, tuple[bytes | pa.Table, str]] = {
    "utf16.csv": ("text,label\nx,a\n".encode("utf-16"), "utf16.csv:1: the file is UTF-16"),
    "utf16le.csv": ("text,label\nx,a\n".encode("utf-16-le"), "utf16le.csv:1: the file is UTF-16"),
    "utf16.jsonl": ((BAD % 1).encode("utf-16"), "utf16.jsonl:1: the file is UTF-16"),
    "cp1252.csv": ("text,label\nGrüße,a\n".encode("cp1252"), "cp1252.csv:2: .*not UTF-8"),
    "cp1252-header.csv": ("text,größe\nx,a\n".encode("cp1252"), "header.csv:1: .*not UTF-8"),
    "mac.csv": (b"text,label\rx,a\r", "mac.csv:1: lines end with CR alone; save .* LF or CRLF"),
    "mac.jsonl": ((BAD % 1).encode().replace(b"\n", b"\r") * 2, "jsonl:1: lines end with CR alone"),
    "mixed.csv": (b"text,label\rx,a\r\n", "mixed.csv:1: .*lines end with CR alone; save .* CRLF"),
    "mixed-rows.csv": (b"text,label\nx,a\ry,b\r\n", "mixed-rows.csv:2: .*lines end with CR alone"),
    "twice.csv": (
        b"text,label,label\nx,a,b\n",
        "twice.csv:1: the column name 'label' occurs twice",
    ),
    "twice.jsonl": (
        b'{"text": "x", "text": "y"}\n',
        "twice.jsonl:1: the column name 'text' occurs",
    ),
    "nested-twice.jsonl": ((BAD % '{"a": 1, "a": 2}').encode(), "the column name 'a' occurs twice"),
    "deep.jsonl": ((BAD % ("[" * 600 + "]" * 600)).encode(), "nested more than 500 deep"),
    "names.parquet": (
        ARROW.replace_schema_metadata({"huggingface": "{"}),
        "names.parquet: the names of its classes cannot be read: not a JSON object",
    ),
    "twice.parquet": (TWICE, "twice.parquet: the column name 'label' occurs twice"),
    "infinity.jsonl": ((BAD % "-Infinity").encode(), "infinity.jsonl:1: -Infinity is no number"),
    "huge.jsonl": ((BAD % "1e999").encode(), "huge.jsonl:1: 1e999 is no number of JSON"),
    "digits.jsonl": ((BAD % ("9" * 5000)).encode(), "more than 4,300 digits; write it as a string"),
    "array.jsonl": (b'[{"text": "x"}]\n', "array.jsonl:1: expected a JSON object, got an array"),
    "spark.csv": (b'text,label\n"say \\"hi\\"",a\n', "spark.csv:2: broken row"),
    "table.xlsx": (b"PK", "table.xlsx: the suffix tells no format; .* Excel, as CSV in UTF-8"),
    "long.jsonl": (b'{"text": "' + b"x" * MAX_ROW_BYTES + b'"}', "long.jsonl:1: a line has more"),
    "binary.parquet": (
        pa.table({"text": [b"x"], "label": ["a"]}),
        "'text' must be a .*, got bytes",
    ),
    "row.parquet": (
        pa.table({"text": ["x", None], "label": ["a", "b"]}),
        "row.parquet:2: 'text' .*, got nothing",
    ),
    "endless.jsonl": (
        b'{"text": ' + b"[" * 100_000,
        "endless.jsonl:1: .*not a JSON object: values",
    ),
    "no.jsonl.gz": (b"no gzip", "no.jsonl.gz: cannot be read"),
    "no.parquet": (b"no parquet", "no.parquet: not a readable Parquet"),
    "empty.csv": (b"", "empty.csv: the file is empty"),
    "nothing.parquet": (pa.table({"text": pa.nulls(1), "label": ["a"]}), "'text' .*, got nothing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_cannot_be_read_right_is_refused_with_its_place(
    tmp_path: Path, name: str
) -> None:
    content, message = REFUSED[name]
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        parquet.write_table(content, path)

    with pytest.raises(NunatakError, match=message):
        load_examples(path)
    with pytest.raises(NunatakError, match=message):
        list(open_inputs(str(path), None, RowFormat()))


def test_a_missing_number_is_no_number(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "x", "label": "a", "n": NaN}\n')
    parquet.write_table(pa.table({"n": [float("nan"), 1.5]}), tmp_path / "x.parquet")

    (row,) = read_rows(file_of_rows(tmp_path / "x.jsonl"))
    table = read_rows(file_of_rows(tmp_path / "x.parquet"))

    assert row.values["n"] is None
    assert [it.values["n"] for it in table] == [None, 1.5]


def test_a_value_that_python_lacks_in_another_column_is_no_obstacle(tmp_path: Path) -> None:
    parquet.write_table(FAR, tmp_path / "far.parquet")

    (row,) = read_rows(file_of_rows(tmp_path / "far.parquet"))

    assert row.values["text"] == "a"


def test_rows_of_empty_fields_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("text;label\na;b\n;\n ; \n;;;\nc;d\n")

    found = list(read_rows(file_of_rows(tmp_path / "x.csv")))

    assert [row.values["text"] for row in found] == ["a", "c"]


def make_packed_line(path: Path) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"text": "')
        for _ in range(64):
            file.write(b"x" * 2**20)
        file.write(b'"}')


def make_packed_rows(path: Path) -> None:
    with gzip.open(path, "wb", compresslevel=6) as file:
        for _ in range(20):
            file.write(b'{"text": "%s"}\n' % (b"x" * 2**20))


def make_dictionary(path: Path) -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int8()), ["x" * 2**20])
    parquet.write_table(pa.table({"text": column}), path)


def make_page(path: Path) -> None:
    texts = pa.array(["x" * 2**20 for _ in range(20)])
    parquet.write_table(pa.table({"text": texts}), path, compression="zstd", use_dictionary=False)


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("line.jsonl.gz", make_packed_line, "line.jsonl.gz:1: a line has more than 16 MiB"),
        ("rows.jsonl.gz", make_packed_rows, "unpacks to more than 256 MiB and 200 times"),
        ("words.parquet", make_dictionary, "unpacks to more than 256 MiB and 200 times"),
        ("page.parquet", make_page, "the column 'text' unpacks to more than 256 MiB"),
    ],
)
def test_a_small_file_that_unpacks_to_a_huge_one_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    make: Callable[[Path], None],
    message: str,
) -> None:
    # A file beyond the true limit takes seconds to write; the message still says the true limit.
    assert files.UNPACKED_BYTES == 2**28
    monkeypatch.setattr(files, "UNPACKED_BYTES", 2**24)
    make(tmp_path / name)

    with pytest.raises(NunatakError, match=message):
        for _ in read_rows(file_of_rows(tmp_path / name)):
            pass
