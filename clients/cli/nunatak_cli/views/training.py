"""The outcome of a training run, as a table and as JSON."""

from collections.abc import Sequence

from pydantic import JsonValue
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from nunatak_cli.training_many import TaskResult
from nunatak_registry.cards.wording import (
    long_examples_text,
    long_text,
    method_text,
    shared_text,
    stored_bytes,
)
from nunatak_training import LayerChoice, TrainOutcome


def outcome_table(outcome: TrainOutcome) -> Table:
    """What was trained, and how well it does on the dev examples."""
    manifest = outcome.manifest
    counts = manifest.parameter_counts
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for metric, value in outcome.metrics.items():
        low, high = outcome.intervals[metric]
        table.add_row(f"dev {metric}", f"{value:.4f}  [{low:.4f}, {high:.4f}] at 95 %")
    if outcome.layer_choice is not None:
        table.add_row("layers chosen", choice_text(outcome.layer_choice))
    table.add_row("method", method_text(manifest.method))
    table.add_row("shared layers", shared_text(manifest))
    table.add_row("labels", str(len(manifest.head.labels)))
    if manifest.head.default_label is not None:
        table.add_row("default label", Text(manifest.head.default_label))
    table.add_row("longest text", f"{manifest.max_length} tokens; {long_text(manifest)}")
    if told := long_examples_text(manifest):
        table.add_row("long examples", told)
    table.add_row("parameters", f"{counts.branch + counts.head:,}")
    table.add_row("stored", decimal(stored_bytes(manifest)))
    table.add_row("best epoch", f"{outcome.best_epoch} of {outcome.history[-1].epoch}")
    table.add_row("time", f"{outcome.seconds:.1f} s")
    return table


def many_table(results: Sequence[TaskResult]) -> Table:
    """What became of each task."""
    table = Table("task", "version", "dev score", "time", box=None)
    for result in results:
        if result.outcome is None:
            problem = "" if result.failure is None else f"failed [{result.failure.code}]"
            table.add_row(result.task, problem, "", "")
            continue
        metric, value = next(iter(result.outcome.metrics.items()))
        version, seconds = result.outcome.manifest.version, result.outcome.seconds
        table.add_row(result.task, str(version), f"{metric} {value:.4f}", f"{seconds:.1f} s")
    return table


def many_json(results: Sequence[TaskResult]) -> dict[str, JsonValue]:
    """What became of each task, in the order in which they were trained."""
    published = [result for result in results if result.outcome is not None]
    return {
        "published": len(published),
        "failed": len(results) - len(published),
        "tasks": [_result_json(result) for result in results],
    }


def _result_json(result: TaskResult) -> dict[str, JsonValue]:
    if result.outcome is not None:
        return {"status": "published", **outcome_json(result.outcome, alias=result.alias)}
    failure = result.failure
    return {
        "status": "failed",
        "task": result.task,
        "code": None if failure is None else failure.code,
        "message": None if failure is None else failure.message,
    }


def choice_text(choice: LayerChoice) -> str:
    """Every run and what it kept of full fine-tuning's score."""
    runs = ", ".join(
        f"{run.layers}: {run.score:.4f} ({run.score / choice.full_score:.1%})"
        for run in choice.runs
    )
    return f"{choice.layers} of {runs}; full: {choice.full_score:.4f}, target {choice.target:.0%}"


def outcome_json(outcome: TrainOutcome, *, alias: str | None) -> dict[str, JsonValue]:
    """The published version, its scores and the way there."""
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
