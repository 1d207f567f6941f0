"""A tiny sweep over toy data, and reports that record their calls."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import JsonValue

from doubles.backbones import save_tiny_backbone
from doubles.examples import rows_of, toy_examples, write_jsonl
from nunatak_training.sweeps.planning import Grid, Run, plan_runs, read_grid
from nunatak_training.sweeps.results import EpochRecord, Failed, Finished, RunRecord
from nunatak_training.sweeps.running import RunContext

QUICK: dict[str, JsonValue] = {"epochs": 2, "max_length": 32}


def toy_folder(folder: Path, *, num_train: int = 24, num_dev: int = 8) -> Path:
    """Write a backbone of three layers and a toy task below `folder`; returns it."""
    save_tiny_backbone(folder / "backbone", num_layers=3)
    data = folder / "toy"
    data.mkdir()
    write_jsonl(data / "train.jsonl", rows_of(toy_examples(num_train, seed=1)))
    write_jsonl(data / "dev.jsonl", rows_of(toy_examples(num_dev, seed=2)))
    return folder


def toy_axes(folder: Path, **changes: JsonValue) -> dict[str, JsonValue]:
    """A sweep of heads over the toy task, with axes in place of its own."""
    return {
        "backbones": [str(folder / "backbone")],
        "data_root": str(folder),
        "tasks": [{"name": "toy"}],
        "methods": [{"kind": "head"}],
        "recipe": QUICK,
        **changes,
    }


def toy_grid(folder: Path, **changes: JsonValue) -> Grid:
    """The sweep as it is read."""
    return read_grid(None, toy_axes(folder, **changes))


def toy_file(folder: Path, **changes: JsonValue) -> Path:
    """The file of the sweep, written to `folder`."""
    (file := folder / "sweep.yaml").write_text(json.dumps(toy_axes(folder, **changes)))
    return file


def toy_runs(folder: Path, **changes: JsonValue) -> tuple[Run, ...]:
    context = RunContext()
    return plan_runs(
        toy_grid(folder, **changes), backbone_of=context.backbone, data_of=context.data
    )


def record_of(run: Run, *scores: float) -> RunRecord:
    """A record of a run with these dev scores, one per epoch; a failure without scores."""
    if not scores:
        outcome: Finished | Failed = Failed(code="training_diverged", message="not finite | no")
    else:
        outcome = Finished(
            metric="accuracy",
            scores={"accuracy": max(scores)},
            test_scores={},
            num_parameters=1,
            best_epoch=1,
            epochs=tuple(
                EpochRecord(epoch=epoch, train_loss=1.0, dev_loss=1.0, dev_score=score)
                for epoch, score in enumerate(scores, start=1)
            ),
        )
    return RunRecord(
        run=run.description,
        outcome=outcome,
        seconds=1.0,
        cpu_seconds=1.0,
        environment={},
        origin=run.origin,
    )


class ScriptedRunner:
    """Gives every run a score at once, and is killed before run number `dies_at`."""

    def __init__(self, *, killed_before: int | None = None) -> None:
        self.done: list[str] = []
        self._killed_before = killed_before

    def __call__(self, runs: Sequence[Run]) -> Iterator[RunRecord]:
        for run in runs:
            if len(self.done) == self._killed_before:
                raise KeyboardInterrupt
            self.done.append(run.description.digest)
            yield record_of(run, 0.5)
