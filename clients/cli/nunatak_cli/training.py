"""Trains and publishes one task for `nunatak train`, and shows the outcome."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from nunatak_cli.options import DeviceName
from nunatak_cli.output import error_console, facts_table
from nunatak_cli.registries import moved_line, promote, published_line
from nunatak_cli.task_show import SHOWN_LABELS
from nunatak_contract.cards import facts
from nunatak_contract.errors import NunatakError
from nunatak_model import Backbone, compute_with, has_cuda
from nunatak_registry import Registry
from nunatak_training.cache import default_cache_folder
from nunatak_training.data import DataWarning
from nunatak_training.recipes import LayerChoice
from nunatak_training.report import ProgressBar
from nunatak_training.scoring import Interval
from nunatak_training.train import TrainOutcome, TrainSettings, train
from nunatak_training.trunk import TrunkStore


def train_and_promote(
    settings: TrainSettings,
    registry: Registry,
    backbone: Backbone,
    *,
    trunks: TrunkStore | None,
    resume: bool,
) -> tuple[TrainOutcome, str | None]:
    """Train, publish, and point the alias, if there is one, at the new version.

    Returns the outcome, and the line about the alias.
    """
    outcome = train(
        settings,
        registry=registry,
        backbone=backbone,
        report=ProgressBar(settings.task),
        trunks=trunks,
        checkpoints=default_cache_folder() if resume else None,
        warn=lambda found: error_console().print(warnings_table(found, settings.task)),
    )
    if settings.promote is None:
        return outcome, None
    version = outcome.manifest.version
    move, has_moved = promote(registry, settings.task, settings.promote, version)
    return outcome, moved_line(move, has_moved=has_moved)


def published_text(outcome: TrainOutcome) -> str:
    return published_line(outcome.manifest.reference, is_new=outcome.is_new)


def warnings_table(warnings: Sequence[DataWarning], task: str) -> Table:
    title = Text(f"warnings about the data of {task}")
    table = Table("problem", "found", "what to do", title=title, title_justify="left")
    for warning in warnings:
        table.add_row(Text(warning.problem), Text(warning.found), Text(warning.advice))
    return table


def prepare_device(device: DeviceName, threads: int | None) -> None:
    """Check that the device exists, and set the number of threads; absent: the free CPUs."""
    if device is DeviceName.CUDA and not has_cuda():
        raise NunatakError(
            "invalid_option",
            problem="--device cuda: torch finds no CUDA device here; expected a GPU with its "
            "driver and a torch built for CUDA. Train with --device cpu",
        )
    compute_with(threads)


def outcome_table(outcome: TrainOutcome) -> Table:
    choice = outcome.layer_choice
    num_run, num_planned = outcome.history[-1].epoch, outcome.num_epochs
    early = "" if num_run == num_planned else f" (ended early, of {num_planned})"
    told = {
        **dict(_scores(outcome)),
        **({} if choice is None else {"layers chosen": _choice_text(choice)}),
        **facts(outcome.manifest, max_labels=SHOWN_LABELS),
        "best epoch": f"{outcome.best_epoch} of {num_run}{early}",
        "time": f"{outcome.seconds:.1f} s",
    }
    return facts_table({name: Text(text) for name, text in told.items()})


def _scores(outcome: TrainOutcome) -> Iterator[tuple[str, str]]:
    for metric, value in outcome.metrics.items():
        yield f"dev {metric}", _score_text(value, outcome.intervals.get(metric))
    if outcome.majority is not None:
        label, share = outcome.majority
        yield "majority share", f"{share:.4f} of the dev examples are {label}"
    if outcome.test is not None:
        for metric, value in outcome.test.values.items():
            yield f"test {metric}", _score_text(value, outcome.test.intervals.get(metric))


def _score_text(value: float, interval: Interval | None) -> str:
    if interval is None:
        return f"{value:.4f}"
    low, high = interval.low, interval.high
    return f"{value:.4f}  [{low:.4f}, {high:.4f}] at 95 % ({interval.method})"


def _choice_text(choice: LayerChoice) -> str:
    runs = ", ".join(
        f"{run.layers}: {run.score:.4f} ({run.score / choice.full_score:.1%})"
        for run in choice.runs
    )
    return f"{choice.layers} of {runs}; full: {choice.full_score:.4f}, target {choice.target:.0%}"


def outcome_json(outcome: TrainOutcome, *, alias: str | None) -> dict[str, object]:
    majority, calibration = outcome.majority, outcome.manifest.calibration
    return {
        "reference": outcome.manifest.reference,
        "task": outcome.manifest.task,
        "version": outcome.manifest.version,
        "is_new": outcome.is_new,
        "alias": alias,
        "default_label": outcome.manifest.head.default_label,
        "long_share": None if outcome.manifest.data is None else outcome.manifest.data.long_share,
        "metrics": dict(outcome.metrics),
        "intervals": {metric: [it.low, it.high] for metric, it in outcome.intervals.items()},
        "majority": majority and {"label": majority[0], "share": majority[1]},
        "test_metrics": outcome.test and dict(outcome.test.values),
        "calibration": calibration
        and calibration.model_dump(mode="json", include={"temperature", "dev", "test"}),
        "best_epoch": outcome.best_epoch,
        "planned_epochs": outcome.num_epochs,
        "epochs": [
            {name: value for name, value in asdict(result).items() if name != "step"}
            for result in outcome.history
        ],
        "layer_choice": outcome.layer_choice,
        "seconds": outcome.seconds,
    }
