"""Plots of a sweep's results."""

# matplotlib leaves the keyword arguments of its methods untyped.
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nunatak_training.sweeps.canvas import LOOKS, legend_below, whole_numbers
from nunatak_training.sweeps.tables import COLUMNS, Cell, deviation, telling_origins

TASK = tuple(COLUMNS).index("task")
COLUMNS_OF_PLOTS = 3


def save_scores(cells: Sequence[Cell], path: Path) -> None:
    """One panel a task: mean score of each setting, with one standard deviation over seeds."""
    drawing, panels = panels_by_task(cells)
    for axes, (task, members) in panels:
        found = [cell for cell in reversed(members) if cell.scores]
        axes.errorbar(
            [mean(cell.scores) for cell in found],
            range(len(found)),
            xerr=[deviation(cell.scores) for cell in found],
            fmt="o",
            capsize=3,
        )
        axes.set_yticks(range(len(found)), [label_of(cell, cells) for cell in found])
        axes.set_xlabel(f"{found[0].outcomes[0].metric}, of dev examples" if found else "")
        axes.set_title(task)
    drawing.savefig(path, dpi=120)


def save_curves(cells: Sequence[Cell], path: Path) -> None:
    """One panel a task: dev score over epochs, the mean of the seeds, a line for each setting."""
    drawing, panels = panels_by_task(cells)
    for axes, (task, members) in panels:
        for cell in members:
            curve = mean_curve(cell)
            epochs, scores = [epoch for epoch, _ in curve], [score for _, score in curve]
            axes.plot(epochs, scores, ms=5, label=label_of(cell, cells))
        whole_numbers(axes)
        axes.set_xlabel("epoch")
        axes.set_ylabel("dev score")
        axes.set_title(task)
    legend_below(drawing, [axes for axes, _ in panels])
    drawing.savefig(path, dpi=120)


def mean_curve(cell: Cell) -> list[tuple[int, float]]:
    """Mean dev score after each epoch that all seeds scored."""
    curves = [{it.epoch: it.dev_score for it in outcome.epochs} for outcome in cell.outcomes]
    shared = set[int].intersection(*map(set, curves)) if curves else set[int]()
    return [(epoch, mean(curve[epoch] for curve in curves)) for epoch in sorted(shared)]


def panels_by_task(
    cells: Sequence[Cell],
) -> tuple[Figure, list[tuple[Axes, tuple[str, list[Cell]]]]]:
    """A figure with a panel for each task, and the cells of each."""
    by_task: dict[str, list[Cell]] = {}
    for cell in cells:
        by_task.setdefault(cell.axes[TASK], []).append(cell)
    num_rows = -(-len(by_task) // COLUMNS_OF_PLOTS)
    num_columns = min(COLUMNS_OF_PLOTS, len(by_task))
    # A figure of its own, not pyplot's: nothing global is left behind.
    drawing = Figure(figsize=(5.5 * num_columns, 4 * num_rows), layout="constrained")
    grid = drawing.subplots(num_rows, num_columns, squeeze=False)
    for axes in grid.flat:
        axes.set_prop_cycle(LOOKS)
    for spare in grid.flat[len(by_task) :]:
        spare.set_axis_off()
    return drawing, list(zip(grid.flat, by_task.items(), strict=False))


def label_of(cell: Cell, cells: Sequence[Cell]) -> str:
    """The axes that vary in the sweep, except the task."""
    varied = [
        value
        for column, value in enumerate(cell.axes)
        if column != TASK and len({other.axes[column] for other in cells}) > 1
    ]
    origins = [cell.origins[origin] for origin in telling_origins(cells)]
    return ", ".join((*varied, *origins)) or "all seeds"
