"""The outcome of multi-task training, as a table and as JSON."""

from pydantic import JsonValue
from rich.table import Table

from nunatak_training.multitask import MultitaskOutcome


def outcome_table(outcome: MultitaskOutcome) -> Table:
    """How well each task does on its dev examples, with the head that was trained along."""
    fitted = outcome.fitted
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, scores in fitted.scores.items():
        shown = ", ".join(f"{metric} {value:.4f}" for metric, value in scores.metrics.items())
        table.add_row(f"dev {name}", shown)
    table.add_row("best epoch", f"{fitted.best_epoch} of {fitted.history[-1].epoch}")
    table.add_row("backbone", f"{outcome.digest[:12]}...")
    table.add_row("time", f"{outcome.seconds:.1f} s")
    return table


def outcome_json(outcome: MultitaskOutcome) -> dict[str, JsonValue]:
    """The new backbone, and the scores of its tasks."""
    fitted = outcome.fitted
    return {
        "folder": str(outcome.folder),
        "digest": outcome.digest,
        "scores": {
            name: {str(metric): value for metric, value in scores.metrics.items()}
            for name, scores in fitted.scores.items()
        },
        "best_epoch": fitted.best_epoch,
        "seconds": outcome.seconds,
    }
