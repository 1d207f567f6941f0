"""`nunatak multitask`: train one encoder on several tasks and write it as a new backbone."""

# ruff: noqa: PLC0415 - the command imports torch when training starts, not for --help

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import JsonValue
from rich.table import Table

from nunatak_cli.options import (
    BackboneOption,
    JsonOption,
    ResumeOption,
    SetOption,
    SettingsCommand,
    assignments,
    check_names,
    settings_given,
)
from nunatak_cli.output import facts_table, print_outcome
from nunatak_cli.training.train import options_of
from nunatak_contract.errors import needs_extra

if TYPE_CHECKING:
    from nunatak_training.multitask import MultitaskOutcome


class MultitaskCommand(SettingsCommand):
    """A command with options of some settings."""

    setting_options = staticmethod(partial(options_of, "epochs", "learning_rate", "seed"))


def multitask(  # noqa: PLR0913 - one parameter per option is how typer works
    context: typer.Context,
    output: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder of the backbone.")],
    *,
    data: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=PATH", help="A task and its examples, as for `train`; give two or more."
        ),
    ],
    kind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=KIND",
            help="The kind of a task, as for `train --kind`. Absent: by the first row.",
        ),
    ] = None,
    backbone: BackboneOption = None,
    as_json: JsonOption = False,
    settings: SetOption = None,
    resume: ResumeOption = True,
) -> None:
    """Train one encoder on several tasks (MT-DNN) and write it as a new backbone."""
    sources, kinds = assignments("--data", data), assignments("--kind", kind)
    check_names("--kind", kinds, sources)
    changes: dict[str, JsonValue] = dict(settings_given(settings, context.obj))
    with needs_extra("training"):
        from nunatak_contract.methods import Full
        from nunatak_model import DEFAULT_BACKBONE, load_backbone
        from nunatak_training.cache import default_cache_folder
        from nunatak_training.kinds import kind_named
        from nunatak_training.multitask import SharedTask, train_backbone
        from nunatak_training.recipes import default_recipe
        from nunatak_training.report import ProgressBar
    tasks = {
        name: SharedTask(data=path, kind=kind_named(kinds.get(name)))
        for name, path in sources.items()
    }
    default_recipe(Full(), changes=changes)  # refuse wrong settings before loading the backbone
    base = load_backbone(backbone or DEFAULT_BACKBONE)
    recipe = default_recipe(Full(), backbone=base.name, changes=changes)
    outcome = train_backbone(
        tasks,
        recipe,
        output,
        base,
        report=ProgressBar(", ".join(sources)),
        checkpoints=default_cache_folder() if resume else None,
    )
    line = f"wrote {outcome.folder}; train on it with --backbone {outcome.folder}"
    print_outcome(_outcome_json(outcome), _outcome_table(outcome), line, as_json=as_json)


def _outcome_table(outcome: "MultitaskOutcome") -> Table:
    fitted = outcome.fitted
    scores = {
        f"dev {name}": ", ".join(f"{metric} {value:.4f}" for metric, value in it.metrics.items())
        for name, it in fitted.scores.items()
    }
    return facts_table(
        {
            **scores,
            "best epoch": f"{fitted.best_epoch} of {fitted.history[-1].epoch}",
            "backbone": f"{outcome.digest[:12]}...",
            "time": f"{outcome.seconds:.1f} s",
        }
    )


def _outcome_json(outcome: "MultitaskOutcome") -> dict[str, object]:
    fitted = outcome.fitted
    return {
        "folder": str(outcome.folder),
        "digest": outcome.digest,
        "scores": {name: dict(scores.metrics) for name, scores in fitted.scores.items()},
        "best_epoch": fitted.best_epoch,
        "seconds": outcome.seconds,
    }
