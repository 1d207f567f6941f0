from pathlib import Path

import pytest
from pyarrow import Table, parquet

from doubles.examples import load_examples
from doubles.refusals import raises
from nunatak_rows import file_of_rows, read_rows
from nunatak_training.data import Example

JSONL = (
    '{"text": "hello", "label": "greeting", "source": "mail"}\n'
    '{"text": "two plus two", "text_pair": "four", "label": "sum"}\n'
)
EXPECTED_JSONL = [
    Example(text="hello", label="greeting"),
    Example(text="two plus two", text_pair="four", label="sum"),
]


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_jsonl_gives_its_rows_in_order_and_ignores_other_fields(tmp_path: Path) -> None:
    assert load_examples(written(tmp_path, "train.jsonl", JSONL)) == EXPECTED_JSONL


def test_parquet_gives_its_rows_in_order(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    columns = {"text": ["hello", "bye"], "text_pair": [None, "now"], "label": [0, 1], "id": [7, 8]}
    parquet.write_table(Table.from_pydict(columns), path)

    assert load_examples(path) == [
        Example(text="hello", label="0"),
        Example(text="bye", text_pair="now", label="1"),
    ]


@pytest.mark.parametrize(
    ("value", "label"),
    [('"a"', "a"), ("3", "3"), ("-1", "-1"), ("true", "true"), ("false", "false")],
)
def test_labels_become_strings(tmp_path: Path, value: str, label: str) -> None:
    path = written(tmp_path, "train.jsonl", f'{{"text": "x", "label": {value}}}\n')

    assert load_examples(path)[0].label == label


@pytest.mark.parametrize(
    ("row", "problem"),
    [("[" * 100_000, "not a JSON object"), ('{"text": "x", "label": 0.5}', "got float")],
    ids=["endless-nesting", "label-float"],
)
def test_broken_row_is_named_by_file_and_line(tmp_path: Path, row: str, problem: str) -> None:
    path = written(tmp_path, "train.jsonl", f"{JSONL}{row}\n")

    with raises("invalid_row", match=problem) as caught:
        load_examples(path)

    assert caught.value.fields["where"] == "train.jsonl:3"


@pytest.mark.parametrize(
    ("name", "content", "where", "column"),
    [
        ("a.jsonl", '{"text": "x"}\n', "a.jsonl:1", "label"),
        ("a.csv", "sentence,label\nx,a\n", "a.csv:1", "text"),
        ("a.tsv", "text\tclass\nx\ta\n", "a.tsv:1", "label"),
        ("a.jsonl", '{"tokens": ["x"]}', "a.jsonl:1", "tags"),
        ("a.jsonl", '{"question": "x", "context": "y"}', "a.jsonl:1", "answers"),
        ("a.jsonl", '{"query": "x", "document": "y"}', "a.jsonl:1", "label"),
        ("a.jsonl", '{"query": "x"}', "a.jsonl:1", "documents"),
        ("a.jsonl", '{"query": "x", "documents": ["y"]}', "a.jsonl:1", "relevance"),
    ],
)
def test_missing_column_is_named_with_what_was_found(
    tmp_path: Path, name: str, content: str, where: str, column: str
) -> None:
    with raises("missing_column") as caught:
        load_examples(written(tmp_path, name, content))

    assert caught.value.fields["where"] == where
    assert caught.value.fields["column"] == column
    assert caught.value.fields["found"]


def test_parquet_row_is_named_by_number(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    parquet.write_table(Table.from_pydict({"text": ["x", None], "label": ["a", "b"]}), path)

    with raises("invalid_row") as caught:
        load_examples(path)

    assert caught.value.fields["where"] == "train.parquet:2"


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("text,label\nx,a\ny\n", "a.csv:3"),
        ("text,label\nx,a,b\n", "a.csv:2"),
        ('text,label\n"x\ny",a\nz\n', "a.csv:4"),
        ('text,label\nx,a\n"y,a\n', "a.csv:3"),
        ('text,label\nx,a\n"y"z,a\n', "a.csv:3"),
    ],
)
def test_broken_csv_row_is_named_by_its_first_line(
    tmp_path: Path, content: str, where: str
) -> None:
    with raises("invalid_row") as caught:
        load_examples(written(tmp_path, "a.csv", content))

    assert caught.value.fields["where"] == where


@pytest.mark.parametrize(
    ("name", "content"), [("a.jsonl.gz", b"no gzip"), ("a.parquet", b"no parquet"), ("a.csv", b"")]
)
def test_unreadable_file_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    with raises("unreadable_file") as caught:
        load_examples(written(tmp_path, name, content))

    assert str(caught.value.fields["where"]).startswith(name)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with raises("data_not_found") as caught:
        load_examples(tmp_path / "train.jsonl")

    assert caught.value.fields["where"] == str(tmp_path / "train.jsonl")


@pytest.mark.parametrize("name", ["train.csv", "train.tsv"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_header_line_tells_the_delimiter(tmp_path: Path, name: str, delimiter: str) -> None:
    content = f'text{delimiter}label\n"one; two, three\t"{delimiter}a\n'

    assert load_examples(written(tmp_path, name, content)) == [
        Example(text="one; two, three\t", label="a")
    ]


def test_a_delimiter_in_a_quoted_column_name_tells_nothing(tmp_path: Path) -> None:
    content = '"a;b;c;d",text,label\n1,one,a\n'

    assert load_examples(written(tmp_path, "train.csv", content)) == [
        Example(text="one", label="a")
    ]


def test_a_named_delimiter_is_taken(tmp_path: Path) -> None:
    path = written(tmp_path, "train.csv", "text|label\none, two; three|a\n")

    rows = list(read_rows(file_of_rows(path, delimiter="|")))

    assert [row.values for row in rows] == [{"text": "one, two; three", "label": "a"}]
