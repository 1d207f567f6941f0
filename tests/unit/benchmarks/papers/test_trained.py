"""Laws of the analyses that train: each run of a sweep gives its part of one table."""

from pathlib import Path

import pytest

from benchmarks.papers.analysis.trained import analyze_landscape, analyze_rsa, analyze_transfer
from benchmarks.papers.analysis.transfer import transfer
from doubles.examples import rows_of, toy_examples, write_jsonl
from doubles.refusals import raises
from doubles.sweeps import toy_folder, toy_runs
from nunatak_training.data import ExampleSet, load_examples
from nunatak_training.fitting import TrainedTask
from nunatak_training.sweeps import Run, RunContext


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


def test_landscape_has_twenty_rows_a_run(runs: tuple[Run, ...]) -> None:
    assert len(analyze_landscape(runs, RunContext()).rows) == 40


def test_transfer_to_the_own_dev_set_is_the_dev_score(
    folder: Path, runs: tuple[Run, ...], tmp_path: Path
) -> None:
    other = write_jsonl(tmp_path / "other.jsonl", rows_of(toy_examples(12, seed=9)))
    tests = {"same": folder / "toy" / "dev.jsonl", "other": other}

    found = analyze_transfer(runs[:1], RunContext(), tests)

    own, same, _ = found.rows
    assert same[3] == own[3]
    assert same[4] == 0.0


def test_transfer_scores_every_set_in_the_metric_of_the_task(
    folder: Path, runs: tuple[Run, ...]
) -> None:
    context = RunContext()
    trained, backbone = context.fit(runs[0]), context.backbone(runs[0].origin.backbone)
    examples = tuple(load_examples(folder / "toy" / "train.jsonl"))

    found = transfer(trained, {"train": ExampleSet(examples=examples)}, backbone)

    assert found.metric == "accuracy"
    assert 0 <= found.others["train"] <= 1


class IdleContext(RunContext):
    """Loads the data of runs, and trains nothing."""

    def fit(self, run: Run) -> TrainedTask:
        raise AssertionError(f"trained {run.description.task}")


def test_test_sets_are_read_before_anything_is_trained(
    runs: tuple[Run, ...], tmp_path: Path
) -> None:
    with raises("data_not_found"):
        analyze_transfer(runs[:1], IdleContext(), {"far": tmp_path / "nowhere.jsonl"})
