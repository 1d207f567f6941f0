"""Dev loss and dev score during training.

He et al. 2021 (arXiv:2106.03164), figure 5 and table 6: the curves, and the mean and the best of
all evaluations. If the mean is close to the best, the end of training matters little.
"""

# matplotlib leaves the keyword arguments of its methods untyped.
# pyright: reportUnknownMemberType=false

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from benchmarks.papers.analysis.findings import Findings
from benchmarks.papers.analysis.finished import finished_cells
from nunatak_training.sweeps.reporting import label_of, legend_below, panels_by_task, whole_numbers
from nunatak_training.sweeps.results import EpochRecord, RunDescription, RunRecord
from nunatak_training.sweeps.tables import COLUMNS, Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Means over the seeds of one setting, after one epoch."""

    step: int
    dev_loss: float
    dev_score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSummary:
    """Means over the seeds: of the mean of all evaluations, and of the best evaluation."""

    mean_loss: float
    best_loss: float
    mean_score: float
    best_score: float


def curve(cell: Cell) -> tuple[CurvePoint, ...]:
    """Return the curve of a setting, at the epochs at which all seeds were evaluated."""
    if not cell.outcomes:
        return ()
    by_seed = [{it.epoch: it for it in outcome.epochs} for outcome in cell.outcomes]
    shared = sorted(set[int].intersection(*map(set, by_seed)))
    return tuple(_point(cell.runs[0], [seed[epoch] for seed in by_seed]) for epoch in shared)


def summary(cell: Cell) -> CurveSummary:
    """Summarize the evaluations of a setting with at least one finished run."""
    seeds = [outcome.epochs for outcome in cell.outcomes]
    return CurveSummary(
        mean_loss=mean(mean(it.dev_loss for it in epochs) for epochs in seeds),
        best_loss=mean(min(it.dev_loss for it in epochs) for epochs in seeds),
        mean_score=mean(mean(it.dev_score for it in epochs) for epochs in seeds),
        best_score=mean(max(it.dev_score for it in epochs) for epochs in seeds),
    )


def analyze_curves(records: Sequence[RunRecord]) -> Findings:
    """Draw the curves of all settings of a sweep, one panel per task.

    Raises:
        NunatakError: `invalid_sweep`, no run finished.
    """
    cells = finished_cells(records)
    drawing, panels = panels_by_task(cells)
    for axes, (task, members) in panels:
        for cell in members:
            points = curve(cell)
            axes.plot(
                [it.step for it in points],
                [it.dev_loss for it in points],
                ms=5,
                label=label_of(cell, cells),
            )
        axes.set(title=task, xlabel="step", ylabel="dev loss")
        whole_numbers(axes)
    legend_below(drawing, [axes for axes, _ in panels])
    return Findings(
        name="curves",
        header=(*COLUMNS, "mean loss", "best loss", "mean score", "best score"),
        rows=tuple(_row(cell) for cell in cells),
        drawing=drawing,
    )


def _row(cell: Cell) -> tuple[str | float, ...]:
    found = summary(cell)
    return (*cell.axes, found.mean_loss, found.best_loss, found.mean_score, found.best_score)


def _point(run: RunDescription, seeds: Sequence[EpochRecord]) -> CurvePoint:
    return CurvePoint(
        step=_step(run, seeds[0]),
        dev_loss=mean(it.dev_loss for it in seeds),
        dev_score=mean(it.dev_score for it in seeds),
    )


def _step(run: RunDescription, epoch: EpochRecord) -> int:
    if epoch.step is not None:
        return epoch.step
    # For texts in windows this number is too low, because a batch holds windows, not texts.
    return epoch.epoch * math.ceil(run.data.num_train / run.recipe.batch_size)
