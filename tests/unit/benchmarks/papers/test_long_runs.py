"""Laws of the runs that go on, on a tiny sweep."""

import gzip
from pathlib import Path

import pytest
import torch
from pydantic import JsonValue

from benchmarks.papers import long_runs
from benchmarks.papers.lines import read_lines
from benchmarks.papers.long_runs import PLAN, Entry, PaperContext, go_on, read_plan
from doubles.sweeps import toy_folder
from nunatak_registry import Registry
from nunatak_training.sweeps.planning import plan_runs, read_grid
from nunatak_training.sweeps.results import Finished

SWEEP = """
name: toy
backbones: [backbone]
tasks:
  - name: toy
methods:
  - kind: full
  - kind: head
train_caps: [16]
recipe: {epochs: 2, max_length: 32}
"""


@pytest.fixture(name="folder")
def make_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(long_runs, "HERE", tmp_path)
    monkeypatch.setenv("NUNATAK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(long_runs.TRANSFERS, "toy", "toy_*")
    folder = toy_folder(tmp_path)
    (folder / "toy.yaml").write_text(SWEEP, encoding="utf-8")
    other = folder / "toy_xx"
    other.mkdir()
    rows = (folder / "toy" / "dev.jsonl").read_bytes()
    (other / "dev.jsonl.gz").write_bytes(gzip.compress(rows))
    return folder


def done(folder: Path, *seeds: int, **overrides: JsonValue) -> list[str]:
    """The methods and seeds of the runs that a plan did now."""
    changes: dict[str, JsonValue] = {"seeds": list(seeds), "overrides": overrides}
    entry = Entry(sweep="toy", lines="toy", set=changes, publish=True)
    runs = go_on(
        [entry], data=folder, models=folder, lines=folder / "lines", registry=folder / "registry"
    )
    return [f"{it.run.recipe.method.kind} {it.run.recipe.seed}" for it in runs]


def test_a_run_with_a_line_is_never_run_again(folder: Path) -> None:
    assert done(folder, 0) == ["full 0", "head 0"]
    assert done(folder, 0, 1) == ["full 1", "head 1"]
    assert done(folder, 0, 1) == []


def test_a_run_in_a_number_format_that_the_cpu_lacks_is_left_to_another_machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_runs, "dtypes", lambda: {"fp32": torch.float32})

    assert done(folder, 0, precision="bfloat16") == []
    assert done(folder, 0, precision="float32") == ["full 0", "head 0"]


def test_a_line_has_what_the_tables_need_and_no_place_of_this_machine(folder: Path) -> None:
    done(folder, 0, 1)
    lines = read_lines(folder / "lines" / "toy.jsonl")

    first, _, second, _ = lines
    assert first.majority is not None
    assert 0.5 <= first.majority < 1
    assert first.transfer == {"toy_xx": first.finished.score}
    assert first.last_score == first.finished.epochs[-1].dev_score
    assert first.run.data.train_digest != second.run.data.train_digest
    assert first.run.data.dev_digest == second.run.data.dev_digest
    text = (folder / "lines" / "toy.jsonl").read_text(encoding="utf-8")
    assert str(folder) not in text
    assert "node" not in first.environment


def test_a_failure_that_is_no_result_leaves_no_line(folder: Path) -> None:
    entry = Entry(sweep="toy", lines="toy", set={"seeds": [0], "overrides": {"metric": "spearman"}})
    runs = go_on([entry], data=folder, models=folder, lines=folder / "lines")

    with pytest.raises(SystemExit, match="spearman"):
        next(runs)
    assert read_lines(folder / "lines" / "toy.jsonl") == ()


def test_versions_that_share_layers_are_published(folder: Path) -> None:
    done(folder, 0)

    with Registry.open(folder / "registry") as registry:
        assert [it.name for it in registry.tasks()] == ["toy-k0"]


def test_after_a_training_that_fails_there_is_no_task_to_publish(folder: Path) -> None:
    context = PaperContext(folder, 0, checkpoints=None)
    sweeps = [{"seeds": [0]}, {"seeds": [0], "overrides.metric": "spearman"}]
    kept = list[bool]()
    for changes in sweeps:
        grid = read_grid(folder / "toy.yaml", {**changes, "data_root": str(folder)})
        runs = plan_runs(grid, backbone_of=context.backbone, data_of=context.data)
        outcome = context.run(runs[0]).outcome
        kept.append(context.last is not None)
        assert isinstance(outcome, Finished) == kept[-1]

    assert kept == [True, False]


@pytest.mark.parametrize("entry", read_plan(PLAN), ids=lambda it: f"{it.lines}-{it.sweep}")
def test_every_entry_of_the_plan_is_a_part_of_a_sweep(entry: Entry) -> None:
    grid = read_grid(PLAN.parent / f"{entry.sweep}.yaml", entry.set)

    assert grid.seeds
    assert set(entry.tasks) <= {task.name for task in grid.tasks}
