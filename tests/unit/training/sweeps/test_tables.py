"""Laws of the tables and plots of a sweep."""

import csv
from pathlib import Path
from statistics import mean, stdev

import pytest
from pydantic import JsonValue

from doubles.backbones import save_tiny_backbone
from doubles.examples import rows_of, toy_examples, write_jsonl
from doubles.sweeps import record_of, toy_folder, toy_runs
from nunatak_training.sweeps.planning import Run
from nunatak_training.sweeps.reporting import (
    COLUMNS,
    cells_markdown,
    cells_of,
    label_of,
    mean_curve,
    runs_csv,
    write_report,
)


@pytest.fixture(name="runs", scope="module")
def make_runs(folder: Path) -> tuple[Run, ...]:
    methods: JsonValue = [{"kind": "head"}, {"kind": "topk", "frozen": [1]}]
    return toy_runs(folder, methods=methods, seeds=[0, 1])


def test_runs_that_differ_in_their_seed_alone_are_one_cell(runs: tuple[Run, ...]) -> None:
    scores = (0.2, 0.4, 0.5, 0.9)

    cells = cells_of([record_of(run, score) for run, score in zip(runs, scores, strict=True)])

    assert [cell.scores for cell in cells] == [(0.2, 0.4), (0.5, 0.9)]
    for cell in cells:
        assert f"| {mean(cell.scores):.4f} | {stdev(cell.scores):.4f} |" in cells_markdown(cells)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"recipe": {"batch_size": 2}}, "batch_size 2"),
        ({"kind": "lora", "rank": 8, "alpha": [16, 2]}, "method.alpha 2"),
    ],
)
def test_runs_that_differ_in_a_setting_without_a_column_are_not_averaged(
    folder: Path, other: dict[str, JsonValue], told: str
) -> None:
    methods: JsonValue = [
        {"kind": "head", **other},
        *([] if "kind" in other else [{"kind": "head"}]),
    ]
    runs = toy_runs(folder, methods=methods)

    cells = cells_of([record_of(run, 0.5) for run in runs])

    assert [cell.scores for cell in cells] == [(0.5,), (0.5,)]
    header, _, *rows = cells_markdown(cells).splitlines()
    assert "| settings |" in header
    assert [told in row for row in rows].count(True) == 1
    assert label_of(cells[0], cells) != label_of(cells[1], cells)


@pytest.mark.parametrize("column", ["data", "weights"])
def test_runs_on_other_examples_or_weights_are_not_averaged_and_a_column_tells_them_apart(
    tmp_path: Path, column: str
) -> None:
    folder = toy_folder(tmp_path)
    (before,) = toy_runs(folder)
    if column == "data":
        write_jsonl(folder / "toy" / "train.jsonl", rows_of(toy_examples(24, seed=3)))
    else:
        save_tiny_backbone(folder / "backbone", num_layers=3, seed=9)
    (after,) = toy_runs(folder)

    cells = cells_of([record_of(before, 0.5), record_of(after, 0.9)])

    assert [cell.scores for cell in cells] == [(0.5,), (0.9,)]
    header, _, *rows = cells_markdown(cells).splitlines()
    assert [f"| {it} |" in header for it in ("data", "weights")].count(True) == 1
    assert f"| {column} |" in header
    assert len({row.split("|")[2] for row in rows}) == 2
    assert label_of(cells[0], cells) != label_of(cells[1], cells)


def test_tasks_have_no_column_for_their_examples(tmp_path: Path) -> None:
    folder = toy_folder(tmp_path)
    write_jsonl(folder / "other.jsonl", rows_of(toy_examples(24, seed=3)))
    runs = toy_runs(folder, tasks=[{"name": "toy"}, {"name": "other", "data": "other.jsonl"}])

    header = cells_markdown(cells_of([record_of(run, 0.5) for run in runs])).splitlines()[0]

    assert "data" not in header


def test_axes_that_do_not_vary_are_left_out_of_the_table(runs: tuple[Run, ...]) -> None:
    header = cells_markdown(cells_of([record_of(run, 0.5) for run in runs])).splitlines()[0]

    assert "method" in header
    assert "regularizer" not in header


def test_failures_stand_in_the_tables(runs: tuple[Run, ...]) -> None:
    records = [record_of(runs[0]), *(record_of(run, 0.5) for run in runs[1:])]

    assert "1 (1 failed: training_diverged)" in cells_markdown(cells_of(records))
    assert "training_diverged: not finite" in runs_csv(records)


def test_csv_has_a_row_a_run(runs: tuple[Run, ...]) -> None:
    header, *rows = csv.reader(runs_csv([record_of(run, 0.5) for run in runs]).splitlines())

    assert header[: len(COLUMNS)] == list(COLUMNS)
    assert len(rows) == len(runs)
    assert {len(row) for row in rows} == {len(header)}


def test_curve_is_the_mean_of_the_seeds_epoch_by_epoch(runs: tuple[Run, ...]) -> None:
    (cell,) = cells_of([record_of(runs[0], 0.2, 0.4), record_of(runs[1], 0.6, 0.4, 0.9)])

    assert mean_curve(cell) == [(1, pytest.approx(0.4)), (2, pytest.approx(0.4))]


def test_report_is_written_from_records_alone_also_if_some_failed(
    runs: tuple[Run, ...], tmp_path: Path
) -> None:
    records = [record_of(runs[0]), *(record_of(run, 0.4, 0.5) for run in runs[1:])]

    paths = write_report(records, tmp_path / "report")

    assert [path.name for path in paths] == ["runs.csv", "table.md", "scores.png", "curves.png"]
    assert all(path.stat().st_size > 0 for path in paths)
