"""Laws of examples in memory: lists, DataFrames and data sets give what a file gives."""

import json
import math
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from nunatak_contract.errors import NunatakError
from nunatak_training.data import Data, LabelSet, RowFormat, load_labelled, load_task_data
from nunatak_training.kinds import TaskKind

ROWS = [
    {"text": text, "label": label}
    for label, texts in {"kind": ("thanks", "great", "fine"), "harsh": ("no", "bad", "ugh")}.items()
    for text in texts
]
CLASSES = Features({"text": Value("string"), "label": ClassLabel(names=["harsh", "kind"])})
DATASET = Dataset.from_list(ROWS).cast(CLASSES)
TWICE = ["text", "label", "label"]


@pytest.mark.parametrize(
    "data",
    [
        ROWS,
        tuple(ROWS),
        pd.DataFrame(ROWS),
        pd.DataFrame(ROWS, index=[9] * len(ROWS)).astype({"label": "category"}),
        pl.DataFrame(ROWS).cast({"label": pl.Categorical}),
        pa.Table.from_pylist(ROWS),
        DATASET.data.table,
        DATASET,
        DATASET.with_format("numpy", columns=["label"]),
        DATASET.to_iterable_dataset().with_format("numpy"),
        {"train": ROWS},
        DatasetDict(train=DATASET),  # pyrefly: ignore[bad-argument-type]
    ],
    ids=[
        *("list", "tuple", "frame", "categories", "polars", "arrow", "arrow-classes"),
        *("dataset", "format", "stream", "parts", "dataset-dict"),
    ],
)
def test_every_form_of_rows_is_read_as_the_same_file(data: Data, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))

    expected, found = load_task_data(path), load_task_data(data)

    assert found.kind is expected.kind
    assert (found.train.digest, found.dev.digest) == (expected.train.digest, expected.dev.digest)
    assert found.labels == ("harsh", "kind")


def test_parts_may_be_rows_and_files(tmp_path: Path) -> None:
    pd.DataFrame(ROWS[::3]).to_csv(tmp_path / "dev.csv", index=False)

    found = load_task_data(
        {"train": ROWS, "validation": str(tmp_path / "dev.csv"), "test": pd.DataFrame(ROWS[1:2])}
    )

    assert [it.text for it in found.dev.examples] == ["thanks", "no"]
    assert found.test is not None
    assert [it.text for it in found.test.examples] == ["great"]


def test_values_of_numpy_are_values_of_python() -> None:
    rows = [
        {"text": np.str_(f"text {it}"), "labels": np.array(["a", "b"][it % 2 :])} for it in range(8)
    ]

    found = load_task_data(rows)

    assert found.kind is TaskKind.MULTI_LABEL
    assert {it.label for it in found.train.examples} <= {
        LabelSet(names=("a", "b")),
        LabelSet(names=("b",)),
    }
    whole = load_task_data([{"text": f"text {it}", "label": np.int64(it % 2)} for it in range(8)])
    assert whole.labels == ("0", "1")


def test_a_frame_from_parquet_has_the_examples_of_its_file(tmp_path: Path) -> None:
    spans = {"text": ["Oslo"], "answer_start": np.array([8])}
    frame = pd.DataFrame(
        [{"question": f"q{it}", "context": "Here in Oslo.", "answers": spans} for it in range(4)]
    )
    path = tmp_path / "answers.parquet"
    frame.to_parquet(path)

    (_, read), (_, given) = map(load_labelled, (path, pd.read_parquet(path)))

    assert [it.example for it in given] == [it.example for it in read]


def test_decimals_of_a_frame_are_values() -> None:
    rows = [{"text": f"text {it}", "label": Decimal(it) / 4} for it in range(8)]

    found = load_task_data(pd.DataFrame(rows), kind=TaskKind.REGRESSION)

    labels = {it.label for it in (*found.train.examples, *found.dev.examples)}
    assert labels == {it / 4 for it in range(8)}


@pytest.mark.parametrize("missing", [None, math.nan, np.float32("nan"), pd.NA, pd.NaT])
def test_a_missing_value_of_a_row_is_that_of_a_frame(tmp_path: Path, missing: object) -> None:
    rows = [{**row, "text_pair": missing} for row in ROWS]
    spelt = RowFormat(rejected=tmp_path / "bad.jsonl")

    kind, read = load_labelled([{"text": "first", "label": missing}, *rows], spelt=spelt)

    assert kind is TaskKind.SINGLE_LABEL
    assert [it.example.text_pair for it in read] == [None] * len(ROWS)
    (rejected,) = (tmp_path / "bad.jsonl").read_text().splitlines()
    assert rejected.startswith('{"place": "train[0]", "code": "invalid_row", ')


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ([1.5, "no"], r"train\[0\]: expected rows by column, .* got float"),
        (["thanks", "no"], r"no column 'label'; found 'text'"),
        (pd.Series(["thanks", "no"]), r"no column 'label'; found 'text'"),
        (5, "train: expected rows by column, .* got int"),
        (pl.LazyFrame(ROWS), "train: expected rows by column, .* LazyFrame; call its .* collect"),
        ({"text": ["a"], "label": ["b"]}, "expected the part train, .* got 'text', 'label'"),
        ({"train": ROWS, "dev": ROWS, "validation": ROWS}, "maybe dev"),
        ({"dev": ROWS}, "expected the part train"),
        ([{"text": "a"}], r"train\[0\]: no column 'label'"),
        ([], "there are no train examples"),
        (
            pd.DataFrame({"text": [*"abcde"], "label": ["x", None, "y", "x", "y"]}),
            r"train\[1\]: 'label' must be .*, got nothing",
        ),
        (pd.DataFrame([["a", "x", "y"]], columns=TWICE), "'label' occurs twice"),
        (pa.table([["a"], ["x"], ["y"]], TWICE), "'label' occurs twice"),
        ([{"text": "one", "label": 10**5000}], "must have 1 to 200 characters"),
    ],
)
def test_what_is_no_rows_is_refused_with_what_was_expected(data: Data, problem: str) -> None:
    with pytest.raises(NunatakError, match=problem):
        load_task_data(data)


def test_labelled_examples_of_all_parts_keep_their_places(tmp_path: Path) -> None:
    pd.DataFrame(ROWS).to_csv(tmp_path / "train.csv", index=False)
    pd.DataFrame(ROWS[:1]).to_json(tmp_path / "test.jsonl", orient="records", lines=True)

    kind, read = load_labelled(tmp_path)

    assert kind is TaskKind.SINGLE_LABEL
    assert [it.where for it in read][-2:] == ["train.csv:7", "test.jsonl:1"]
