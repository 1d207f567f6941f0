"""From the options of `multitask` to a new backbone and what is said of it."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue
from rich.table import Table

from nunatak_cli.training import kind_named
from nunatak_contract.methods import Full
from nunatak_model import DEFAULT_BACKBONE, load_backbone
from nunatak_training import ProgressBar, default_cache_folder, default_recipe
from nunatak_training.multitask import (
    MultitaskOutcome,
    MultitaskSettings,
    SharedTask,
    train_backbone,
)


def train_encoder(
    sources: Mapping[str, str],
    kinds: Mapping[str, str],
    *,
    output: Path,
    backbone: str | None,
    named: Mapping[str, str],
    resumes: bool,
) -> MultitaskOutcome:
    """Train one encoder on the tasks of `sources`, by name, and write it to `output`.

    `named` are settings of the recipe. With `resumes` a killed run goes on, and this one could.

    Raises:
        InvalidOptionError: there is no such kind.
        InvalidRecipeError: a name is no setting, or its value does not fit.
    """
    tasks = {
        name: SharedTask(data=data, kind=kind_named(kinds.get(name)))
        for name, data in sources.items()
    }
    changes: dict[str, JsonValue] = dict(named)
    default_recipe(Full(), changes=changes)  # a slip shows before the backbone is loaded
    base = load_backbone(backbone or DEFAULT_BACKBONE)
    recipe = default_recipe(Full(), backbone=base.name, changes=changes)
    settings = MultitaskSettings(tasks=tasks, recipe=recipe, output=output)
    return train_backbone(
        settings,
        base,
        report=ProgressBar(", ".join(sources)),
        checkpoints=default_cache_folder() if resumes else None,
    )


def encoder_table(outcome: MultitaskOutcome) -> Table:
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


def encoder_json(outcome: MultitaskOutcome) -> dict[str, JsonValue]:
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
