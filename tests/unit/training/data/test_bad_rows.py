"""Laws of dirty examples: all bad rows are told at once, or left out with their reasons."""

import json
from pathlib import Path

import pytest

from doubles.refusals import raises
from nunatak_contract.errors import NunatakError
from nunatak_training.data import RowFormat, load_labelled, load_task_data
from nunatak_training.kinds import TaskKind

CLEAN = [f"text {number};{'ab'[number % 2]}" for number in range(20)]
DIRTY = ["Body;Queue", ";a", *CLEAN, ";", "broken", "lone;c", "blank;", ";b"]
SPELT = RowFormat(text="Body", label="Queue")


def write(folder: Path, lines: list[str], name: str = "desk.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(lines), encoding="utf-8-sig")
    return path


def test_all_bad_rows_are_told_with_count_place_and_the_columns_of_the_user(tmp_path: Path) -> None:
    with raises("invalid_row") as caught:
        load_task_data(write(tmp_path, DIRTY), spelt=SPELT)

    told = str(caught.value)
    assert told.startswith("desk.csv: 5 of 25 rows cannot be used. 2: 'Body' is empty")
    for part in (
        "(desk.csv:2, desk.csv:27)",
        "1: expected 2 fields as in the header, got 1 (desk.csv:24)",
        "1: label 'c' has 1 train example",
        "1: 'Queue' must have 1 to 200 characters, got 0 (desk.csv:26)",
        "with on_bad_row=skip, Python with rejected=FILE",
    ):
        assert part in told


def test_a_report_stays_short(tmp_path: Path) -> None:
    lines = ["text,label", *(f"{it},{'x' * (201 + it)}" for it in range(40)), *[",a"] * 40]

    with raises("invalid_row") as caught:
        load_task_data(write(tmp_path, lines))

    told = str(caught.value)
    assert told.count("desk.csv:") == 1 + 10 + 9
    assert "; and 31 other reasons" in told


def test_bad_rows_are_left_out_with_the_reasons_of_the_last_run(tmp_path: Path) -> None:
    rejected = tmp_path / "desk.rejected.jsonl"
    spelt = RowFormat(text="Body", label="Queue", rejected=rejected)

    data = load_task_data(write(tmp_path, DIRTY), spelt=spelt)

    assert (len(data.train) + len(data.dev), data.labels) == (20, ("a", "b"))
    rows = [json.loads(line) for line in rejected.read_text().splitlines()]
    assert sorted(row["row"] for row in rows) == [2, 24, 25, 26, 27]
    assert {row["file"] for row in rows} == {"desk.csv"}
    assert {row["code"] for row in rows} == {"invalid_row", "too_few_examples"}
    assert all(row["reason"] and "desk.csv" not in row["reason"] for row in rows)
    load_task_data(write(tmp_path, ["Body;Queue", *CLEAN]), spelt=spelt)
    assert not rejected.exists()


def test_the_file_of_bad_rows_is_no_file_of_examples(tmp_path: Path) -> None:
    train = write(tmp_path, ["text;label", *CLEAN])

    other, spelt = write(tmp_path, ["text;label", *CLEAN], "b.csv"), RowFormat(rejected=train)

    for data, dev in ((train, None), ({"train": train}, None), (other, train)):
        with raises("invalid_option", match="holds the examples; name another file"):
            load_task_data(data, dev=dev, spelt=spelt)
    assert train.exists()


def test_labels_that_only_dev_has_are_told_and_left_out_like_other_bad_rows(tmp_path: Path) -> None:
    train = write(tmp_path, ["text;label", *CLEAN])
    dev = write(tmp_path, ["text;label", "x;a", "y;c", "z;d"], "dev.csv")

    with raises("invalid_row", match="2 of 23 rows .* label 'c' is unknown; .*dev.csv:3"):
        load_task_data(train, dev=dev)
    data = load_task_data(train, dev=dev, spelt=RowFormat(rejected=tmp_path / "out.jsonl"))

    assert [it.text for it in data.dev.examples] == ["x"]


@pytest.mark.parametrize(
    "vectors",
    [
        [[0, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 0]],
        [[True, False, False], [False, True, False]],
        [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]],
        [[0, 1], [1, 0]],
        [[False, True], [True, False]],
    ],
)
def test_vectors_of_zeros_and_ones_are_no_lists_of_labels(vectors: list[list[float]]) -> None:
    rows = [{"text": f"text {it}", "labels": vectors[it % len(vectors)]} for it in range(40)]

    with pytest.raises(NunatakError, match=r"list the names of the labels|got float"):
        load_task_data(rows)


def test_numbers_may_be_the_names_of_labels() -> None:
    rows = [{"text": f"text {it}", "labels": [[1], [0, 2], []][it % 3]} for it in range(40)]

    assert load_task_data(rows).labels == ("0", "1", "2")


WHOLE = [{"text": f"text {it}", "label": float(it % 2)} for it in range(40)]


def test_whole_numbers_with_a_decimal_point_are_never_guessed_to_be_values() -> None:
    gaps = [{"text": "first", "label": None}, *WHOLE]

    for rows in (WHOLE, gaps):
        with raises("invalid_option", match="kind to regression .* or to single-label"):
            load_task_data(rows)
    named = load_task_data(WHOLE, kind=TaskKind.SINGLE_LABEL)
    values = load_task_data(WHOLE, kind=TaskKind.REGRESSION)

    assert named.labels == ("0", "1")
    assert values.train.labels(float)[0] in {0.0, 1.0}


def test_the_first_label_tells_the_kind_also_below_rows_without_label(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": None}, *({"text": f"{it}", "label": it / 4} for it in range(9))]

    kind, read = load_labelled(rows, spelt=RowFormat(rejected=tmp_path / "out.jsonl"))

    assert (kind, len(read)) == (TaskKind.REGRESSION, 9)
