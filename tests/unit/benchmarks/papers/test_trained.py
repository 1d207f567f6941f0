"""Laws of the analyses that train: each run of a sweep gives its part of one table."""

from pathlib import Path

import pytest

from benchmarks.papers.analysis.trained import analyze_landscape, analyze_rsa
from doubles.sweeps import toy_folder, toy_runs
from nunatak_training.sweeps.planning import Run
from nunatak_training.sweeps.running import RunContext


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_folder(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(name="runs", scope="module")
def make_runs(folder: Path) -> tuple[Run, ...]:
    return toy_runs(folder, methods=[{"kind": "head"}, {"kind": "topk", "layers": [1]}])


def test_rsa_has_a_row_for_every_layer_of_every_run(runs: tuple[Run, ...]) -> None:
    found = analyze_rsa(runs, RunContext(), num_tokens=20)

    assert [row[1] for row in found.rows] == [1, 2, 3, 1, 2, 3]
    assert [row[2] for row in found.rows[:3]] == pytest.approx([1.0, 1.0, 1.0])


def test_landscape_has_twenty_two_rows_a_run(runs: tuple[Run, ...]) -> None:
    assert len(analyze_landscape(runs, RunContext()).rows) == 44
