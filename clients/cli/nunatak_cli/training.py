"""Trains and publishes one task for `nunatak train`, and shows the outcome."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from nunatak_contract.errors import NunatakError
from nunatak_contract.names import check_alias_name, check_task_name
from nunatak_model import DEFAULT_BACKBONE, Backbone, load_backbone
from nunatak_registry import Registry
from nunatak_registry.cards import (
    long_examples_text,
    long_text,
    method_text,
    shared_text,
    stored_bytes,
)
from nunatak_training.cache import default_cache_folder
from nunatak_training.fitting import method_on
from nunatak_training.kinds import TaskKind
from nunatak_training.recipes import LayerChoice, default_recipe
from nunatak_training.report import ProgressBar
from nunatak_training.run_settings import RunSettings
from nunatak_training.train import TrainOutcome, TrainSettings, train
from nunatak_training.trunk import DiskTrunkStore, TrunkStore


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """One task to train, with its settings."""

    task: str
    data: str
    kind: TaskKind | None
    dev: Path | None
    note: str
    backbone: str | None
    settings: RunSettings
    alias: str | None
    """Alias to point at the new version."""
    cache: bool = True
    """Whether the disk keeps the trunk states."""
    resume: bool = True
    """Whether to continue a killed run and to write checkpoints."""


def train_and_promote(
    request: TrainRequest,
    registry: Registry,
    *,
    backbone: Backbone | None = None,
    trunks: TrunkStore | None = None,
) -> TrainOutcome:
    """Train, publish, and point the request's alias, if given, at the new version.

    Several requests may share one loaded `backbone` and one store of trunk states, `trunks`.
    """
    check_names(request)
    if backbone is None:
        backbone = load_backbone(request.backbone or DEFAULT_BACKBONE)
    chosen = request.settings
    recipe = default_recipe(
        method_on(chosen, backbone.config), backbone=backbone.name, changes=chosen.changes
    )
    if trunks is None and request.cache:
        trunks = DiskTrunkStore()
    settings = TrainSettings(
        task=request.task,
        data=request.data,
        recipe=recipe,
        kind=request.kind,
        dev=request.dev,
        note=request.note,
        layer_target=chosen.layer_target,
        recipe_changes=chosen.changes,
    )
    outcome = train(
        settings,
        registry=registry,
        backbone=backbone,
        report=ProgressBar(request.task),
        trunks=trunks,
        checkpoints=default_cache_folder() if request.resume else None,
    )
    if request.alias is not None:
        registry.promote(request.task, request.alias, outcome.manifest.version)
    return outcome


def check_names(request: TrainRequest) -> None:
    """Refuse malformed names of task and alias before the work, not after it."""
    if request.alias is not None:
        check_alias_name(request.alias)
    check_task_name(request.task)


def kind_named(name: str | None) -> TaskKind | None:
    """Return the kind of task that an option names, or `None` without a name.

    Raises:
        NunatakError: `invalid_option`, there is no such kind.
    """
    if name is not None and name not in set(TaskKind):
        raise NunatakError(
            "invalid_option", problem=f"--kind must be one of {', '.join(TaskKind)}, got {name!r}"
        )
    return None if name is None else TaskKind(name)


def outcome_table(outcome: TrainOutcome) -> Table:
    """Return the facts of the new version and its scores on the dev examples."""
    manifest = outcome.manifest
    counts = manifest.parameter_counts
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for metric, value in outcome.metrics.items():
        low, high = outcome.intervals[metric]
        table.add_row(f"dev {metric}", f"{value:.4f}  [{low:.4f}, {high:.4f}] at 95 %")
    if outcome.layer_choice is not None:
        table.add_row("layers chosen", _choice_text(outcome.layer_choice))
    table.add_row("method", method_text(manifest.method))
    table.add_row("shared layers", shared_text(manifest))
    table.add_row("labels", str(len(manifest.head.labels)))
    if manifest.head.default_label is not None:
        table.add_row("default label", Text(manifest.head.default_label))
    table.add_row("longest text", f"{manifest.max_length} tokens; {long_text(manifest)}")
    if long_examples := long_examples_text(manifest):
        table.add_row("long examples", long_examples)
    table.add_row("parameters", f"{counts.branch + counts.head:,}")
    table.add_row("stored", decimal(stored_bytes(manifest)))
    table.add_row("best epoch", f"{outcome.best_epoch} of {outcome.history[-1].epoch}")
    table.add_row("time", f"{outcome.seconds:.1f} s")
    return table


def _choice_text(choice: LayerChoice) -> str:
    """Return every run with its share of the score of full fine-tuning."""
    runs = ", ".join(
        f"{run.layers}: {run.score:.4f} ({run.score / choice.full_score:.1%})"
        for run in choice.runs
    )
    return f"{choice.layers} of {runs}; full: {choice.full_score:.4f}, target {choice.target:.0%}"


def outcome_json(outcome: TrainOutcome, *, alias: str | None) -> dict[str, JsonValue]:
    """Return the published version, its scores and the epochs of the training."""
    return {
        "reference": outcome.manifest.reference,
        "task": outcome.manifest.task,
        "version": outcome.manifest.version,
        "alias": alias,
        "default_label": outcome.manifest.head.default_label,
        "long_share": None if outcome.manifest.data is None else outcome.manifest.data.long_share,
        "metrics": {str(metric): value for metric, value in outcome.metrics.items()},
        "intervals": {str(metric): [*ends] for metric, ends in outcome.intervals.items()},
        "best_epoch": outcome.best_epoch,
        "epochs": [
            {
                "epoch": result.epoch,
                "train_loss": result.train_loss,
                "dev_loss": result.dev_loss,
                "dev_score": result.dev_score,
                "seconds": result.seconds,
            }
            for result in outcome.history
        ],
        "layer_choice": None
        if outcome.layer_choice is None
        else outcome.layer_choice.model_dump(mode="json"),
        "seconds": outcome.seconds,
    }
