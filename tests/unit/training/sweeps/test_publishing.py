"""Laws of publishing the best run of a sweep."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from doubles.examples import rows_of, toy_examples, write_jsonl
from doubles.sweeps import record_of, toy_folder, toy_runs
from nunatak_contract.errors import NunatakError
from nunatak_registry import Registry
from nunatak_training.publishing import publish
from nunatak_training.sweeps.planning import Run
from nunatak_training.sweeps.results import Finished, RunRecord
from nunatak_training.sweeps.running import RunContext, best_run, publish_best

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(name="runs", scope="module")
def make_runs(folder: Path) -> tuple[Run, ...]:
    return toy_runs(folder, seeds=[0, 1, 2])


def scored(run: Run, dev: float, **changes: object) -> RunRecord:
    record = record_of(run, dev)
    return record.model_copy(update={"outcome": record.outcome.model_copy(update=changes)})


def test_the_best_run_is_the_best_on_dev_and_never_on_test(runs: tuple[Run, ...]) -> None:
    records = (
        scored(runs[0], 0.8, test_scores={"accuracy": 0.99}),
        scored(runs[1], 0.9, test_scores={"accuracy": 0.1}),
        record_of(runs[2]),  # failed
    )

    assert best_run(records) is records[1]
    assert best_run(records, task="toy") is records[1]


def test_of_equal_scores_the_smaller_task_wins(runs: tuple[Run, ...]) -> None:
    records = (scored(runs[0], 0.9, num_parameters=9), scored(runs[1], 0.9, num_parameters=3))

    assert best_run(records) is records[1]


def test_the_published_weights_are_those_of_the_run(runs: tuple[Run, ...], tmp_path: Path) -> None:
    context = RunContext()
    records = tuple(map(context.run, runs))
    best = best_run(records)
    assert isinstance(best.outcome, Finished)
    (run,) = (it for it in runs if it.description == best.run)

    with Registry.open(tmp_path) as registry:
        found = publish_best(best, registry, RunContext(), task="tone", note="chosen")
        backbone = context.backbone(run.origin.backbone)
        # The registry answers an equal content with the version that has it.
        same = publish(
            context.fit(run), registry, backbone, task="tone", created_at=NOW, note="chosen"
        )

    assert same == found.manifest
    assert found.manifest.reference == "tone/1"
    assert {it.name: it.value for it in found.manifest.metrics} == best.outcome.scores
    assert found.manifest.recipe is not None
    assert found.manifest.recipe.settings["seed"] == best.run.recipe.seed


def test_a_result_can_be_repeated_from_any_folder(
    runs: tuple[Run, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (best,) = map(RunContext().run, runs[:1])
    monkeypatch.chdir(tmp_path)

    with Registry.open(tmp_path / "registry") as registry:
        read = RunRecord.model_validate_json(best.model_dump_json())
        assert publish_best(read, registry, RunContext(), task="tone").manifest.version == 1


def test_the_published_run_is_calibrated_if_asked(tmp_path: Path) -> None:
    folder = toy_folder(tmp_path, num_dev=60)
    (best,) = map(RunContext().run, toy_runs(folder))

    with Registry.open(tmp_path / "registry") as registry:
        found = publish_best(best, registry, RunContext(), task="tone", calibrate=True)

    assert found.manifest.calibration is not None
    assert found.manifest.recipe is not None
    assert found.manifest.recipe.settings["calibrate"] is True
    assert isinstance(best.outcome, Finished)
    assert {it.name: it.value for it in found.manifest.metrics} == best.outcome.scores


def test_changed_examples_publish_nothing(tmp_path: Path) -> None:
    folder = toy_folder(tmp_path)
    (best,) = map(RunContext().run, toy_runs(folder))
    write_jsonl(folder / "toy" / "train.jsonl", rows_of(toy_examples(24, seed=9)))

    with (
        Registry.open(tmp_path / "registry") as registry,
        pytest.raises(NunatakError, match="have changed since the sweep"),
    ):
        publish_best(best, registry, RunContext(), task="tone")


def test_runs_that_cannot_be_compared_are_refused(folder: Path, runs: tuple[Run, ...]) -> None:
    other = toy_runs(folder, tasks=[{"name": "toy"}], dev_cap=4)
    several = toy_runs(folder, tasks=[{"name": "toy"}], seeds=[7])

    with pytest.raises(NunatakError, match="several dev sets"):
        best_run((record_of(runs[0], 0.8), record_of(other[0], 0.9)))
    with pytest.raises(NunatakError, match="has finished"):
        best_run((record_of(runs[0]),))
    with pytest.raises(NunatakError, match="expected one of the tasks toy, got 'tone'"):
        best_run((record_of(runs[0], 0.8),), task="tone")
    renamed = replace(
        several[0], description=several[0].description.model_copy(update={"task": "too"})
    )
    with pytest.raises(NunatakError, match="tasks too, toy; `of` names one"):
        best_run((record_of(runs[0], 0.8), record_of(renamed, 0.9)))


def test_a_result_without_its_places_is_refused(runs: tuple[Run, ...], tmp_path: Path) -> None:
    record = record_of(runs[0], 0.8).model_copy(update={"origin": None})
    with (
        Registry.open(tmp_path) as registry,
        pytest.raises(NunatakError, match="earlier release; run the sweep again"),
    ):
        publish_best(record, registry, RunContext(), task="tone")
