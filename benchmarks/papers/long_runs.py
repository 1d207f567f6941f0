"""Runs that go on: the plan's runs without a line, in the plan's order, one line of JSON each.

    python -m benchmarks.papers.long_runs --data DATA --models MODELS

The program can be stopped and started at any time, on any machine. A run that has a line is never
run again. A killed run goes on from its last checkpoint, if the machine still has it.
"""

import argparse
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path

import torch
import yaml
from filelock import FileLock
from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter

from benchmarks.harness.recording import existing, hardware
from benchmarks.harness.workload import dtypes
from benchmarks.papers.lines import LINES, PaperRun, append_line, majority_score, read_lines
from nunatak_model import Backbone, load_backbone
from nunatak_registry import Registry
from nunatak_training.data import ExampleSet, TaskData, load_task_data
from nunatak_training.data.sources import load_test_rows
from nunatak_training.fitting import TrainedTask, evaluate
from nunatak_training.kinds import Metric
from nunatak_training.publishing import publish
from nunatak_training.sweeps.planning import Run, cut_data, plan_runs, read_grid
from nunatak_training.sweeps.reporting import num_frozen, run_text
from nunatak_training.sweeps.results import Failed, Finished, Source
from nunatak_training.sweeps.running import RunContext

HERE = Path(__file__).parent
PLAN = HERE / "plan.yaml"
DIVERGED = "training_diverged"
"""The one failure that is a result."""
TRANSFER_CAP = 500
"""Most examples of each other language."""


class Entry(BaseModel):
    """One entry of the plan: a part of a sweep."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sweep: str
    lines: str
    tasks: tuple[str, ...] = ()
    """The only tasks; none: all tasks of the sweep."""
    set: dict[str, JsonValue] = {}
    """Values in place of the sweep's own, with at least the seeds."""
    publish: bool = False
    """Whether versions go to the registry, if the program has one."""


TRANSFERS: Mapping[str, str] = {
    "ud_ewt_pos": "ud_*_pos",
    "wikiann_en": "wikiann_*",
    "conll2003_en": "conll2002_*",
    "xnli_en": "xnli_*",
}
"""The sets of other languages by the English set that a task is trained on."""


class PaperContext(RunContext):
    """Loads backbones from a folder, draws train examples by the seed, and keeps the last task."""

    def __init__(self, models: Path, seed: int, *, checkpoints: Path | None) -> None:
        super().__init__(checkpoints=checkpoints)
        self.backbone = lru_cache(maxsize=1)(partial(backbone_below, models))
        self.data = lru_cache(maxsize=2)(partial(drawn, seed=seed))
        self.last: TrainedTask | None = None

    def fit(self, run: Run) -> TrainedTask:
        """Train, and keep the trained task; None after a training that fails."""
        self.last = None
        self.last = super().fit(run)
        return self.last


def backbone_below(models: Path, name: str) -> Backbone:
    own = models / name
    return load_backbone(str(own) if own.is_dir() else name)


def drawn(source: Source, *, seed: int) -> TaskData:
    """Load the examples of a run; the seed draws those to train on."""
    data = load_task_data(source.data, kind=source.kind, dev=source.dev)
    train = list(data.train.examples)
    random.Random(seed).shuffle(train)
    return cut_data(replace(data, train=ExampleSet(examples=tuple(train))), source.cut)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=existing, required=True, help="folder of the sets")
    parser.add_argument("--models", type=existing, required=True, help="folder of backbones")
    parser.add_argument("--plan", type=existing, default=PLAN)
    parser.add_argument("--lines", type=Path, default=LINES, help="folder of the lines")
    parser.add_argument("--registry", type=Path, help="publish versions here, where the plan says")
    parser.add_argument("--checkpoints", type=Path, help="folder of the states of killed runs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.lines.mkdir(parents=True, exist_ok=True)
    # The lock's file must not lie among the lines, which are kept in the repository.
    with FileLock(options.lines.with_suffix(".lock"), blocking=False):
        for run in go_on(
            read_plan(options.plan),
            data=options.data,
            models=options.models,
            lines=options.lines,
            registry=options.registry,
            checkpoints=options.checkpoints,
        ):
            print(told(run), flush=True)


def read_plan(path: Path) -> tuple[Entry, ...]:
    return TypeAdapter(tuple[Entry, ...]).validate_python(yaml.safe_load(path.read_text("utf-8")))


def go_on(
    plan: Sequence[Entry],
    *,
    data: Path,
    models: Path,
    lines: Path,
    registry: Path | None = None,
    checkpoints: Path | None = None,
) -> Iterator[PaperRun]:
    """Do the runs without a line, and yield each as soon as its line is written.

    Runs in a number format that the CPU does not multiply are left to another machine.
    """
    formats = {str(it).removeprefix("torch.") for it in dtypes().values()}
    for entry in plan:
        file = lines / f"{entry.lines}.jsonl"
        changes = {**entry.set, "data_root": str(data)}
        grid = read_grid(HERE / f"{entry.sweep}.yaml", changes)
        if entry.tasks:
            kept = tuple(task for task in grid.tasks if task.name in entry.tasks)
            grid = grid.model_copy(update={"tasks": kept})
        for seed in grid.seeds:
            context = PaperContext(models, seed, checkpoints=checkpoints)
            runs = plan_runs(
                grid.model_copy(update={"seeds": (seed,)}),
                backbone_of=context.backbone,
                data_of=context.data,
            )
            for run in runs:
                is_done = run.description.digest in {it.run.digest for it in read_lines(file)}
                if is_done or run.description.recipe.precision not in formats:
                    continue
                done = finished_run(run, context, data)
                append_line(file, done)
                if entry.publish and registry is not None and context.last is not None:
                    publish_run(run, context.last, context, registry)
                yield done


def finished_run(run: Run, context: PaperContext, data: Path) -> PaperRun:
    record = context.run(run)
    if isinstance(record.outcome, Failed) and record.outcome.code != DIVERGED:
        # A full disk, say, is no result, and a line would keep the run from being tried again.
        raise SystemExit(f"{run_text(run.description)}: {record.outcome.message}")
    drawn_data = context.data(run.origin.source)
    majority, transfer = None, dict[str, float]()
    if isinstance(record.outcome, Finished) and context.last is not None:
        metric = Metric(record.outcome.metric)
        majority = majority_score(
            drawn_data,
            drawn_data.test or drawn_data.dev,
            metric,
            run.description.recipe.positive_label,
        )
        transfer = transferred(context.last, context.backbone(run.origin.backbone), metric, data)
    environment = {name: it for name, it in record.environment.items() if name != "node"}
    known = {**record.model_dump(exclude={"origin"}), "environment": environment}
    return PaperRun.model_validate(
        {**known, "majority": majority, "transfer": transfer, "hardware": hardware()}
    )


def transferred(
    trained: TrainedTask, backbone: Backbone, metric: Metric, data: Path
) -> dict[str, float]:
    name = trained.data.name
    others = sorted(data.glob(TRANSFERS[name])) if name in TRANSFERS else []
    found = dict[str, float]()
    for folder in others:
        if folder.name != name:
            rows = load_test_rows(
                folder / "dev.jsonl.gz", kind=trained.data.kind, labels=trained.data.labels
            )
            part = ExampleSet(examples=tuple(it.example for it in rows[:TRANSFER_CAP]))
            found[folder.name] = evaluate(trained, part, backbone).values[metric].value
    return found


def version_name(run: Run) -> str | None:
    """Return `TASK-kN` for N own layers; None for full fine-tuning, which shares no layers."""
    frozen = num_frozen(run.description)
    if frozen is None:
        return None
    return f"{run.description.task}-k{run.description.backbone.num_layers - frozen}"


def publish_run(run: Run, trained: TrainedTask, context: PaperContext, registry: Path) -> None:
    name, now = version_name(run), datetime.now(UTC)
    if name is not None:
        backbone = context.backbone(run.origin.backbone)
        with Registry.open(registry) as opened:
            publish(trained, opened, backbone, task=name, created_at=now)


def told(run: PaperRun) -> str:
    outcome = run.outcome
    found = f"{outcome.score:.4f}" if isinstance(outcome, Finished) else outcome.message
    return f"{run.run.sweep}: {run_text(run.run)}: {found} ({run.cpu_seconds:.0f} s)"


if __name__ == "__main__":
    main()
