"""The report of a sweep: tables and plots from the results alone."""

# matplotlib leaves the keyword arguments of its methods untyped.
# pyright: reportUnknownMemberType=false

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean

from cycler import cycler
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nunatak_training.sweeps import tables
from nunatak_training.sweeps.results import RunRecord

COLOURS = (
    *("#009e73", "#d55e00", "#0072b2", "#cc79a7", "#e69f00"),
    *("#56b4e9", "#7b4fb5", "#8a6d3b", "#8a8f96"),
)
"""Okabe and Ito's colours without black and yellow, and more for long sweeps."""
MARKERS = "os^vDPXd*"
LOOKS = cycler(color=COLOURS) + cycler(marker=MARKERS)
"""Colours tell lines apart; marks do so for any colour vision."""
LETTER, HANDLE = 0.075, 0.6
"""Inches of a letter and of a line with its gaps, in a legend."""
LEGEND_SIZE = 8
TASK = tuple(tables.COLUMNS).index("task")
COLUMNS_OF_PLOTS = 3


def write_report(records: Sequence[RunRecord], folder: Path) -> tuple[Path, ...]:
    """Write `runs.csv`, `table.md`, `scores.png` and `curves.png`; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    ordered = in_order(records)
    cells = tables.cells_of(ordered)
    paths = tuple(folder / name for name in ("runs.csv", "table.md", "scores.png", "curves.png"))
    runs, table, scores, curves = paths
    runs.write_text(tables.runs_csv(ordered), encoding="utf-8")
    table.write_text(tables.cells_markdown(cells), encoding="utf-8")
    save_scores(cells, scores)
    save_curves(cells, curves)
    return paths


def in_order(records: Sequence[RunRecord]) -> list[RunRecord]:
    return sorted(records, key=_order)


def _order(record: RunRecord) -> tuple[str, int, str, str, str, float, int]:
    run = record.run
    method = run.recipe.method
    return (
        run.task,
        run.data.num_train,
        method.kind,
        f"{getattr(method, 'num_layers', 0):04}{method.width or 0:04}",
        run.recipe.regularizer.name,
        run.recipe.learning_rate,
        run.recipe.seed,
    )


def save_scores(cells: Sequence[tables.Cell], path: Path) -> None:
    """One panel a task: mean score of each setting, with one standard deviation over seeds."""
    drawing, panels = panels_by_task(cells)
    for axes, (task, members) in panels:
        found = [cell for cell in reversed(members) if cell.scores]
        axes.errorbar(
            [mean(cell.scores) for cell in found],
            range(len(found)),
            xerr=[tables.deviation(cell.scores) for cell in found],
            fmt="o",
            capsize=3,
        )
        axes.set_yticks(range(len(found)), [label_of(cell, cells) for cell in found])
        axes.set_xlabel(f"{found[0].outcomes[0].metric}, of dev examples" if found else "")
        axes.set_title(task)
    drawing.savefig(path, dpi=120)


def save_curves(cells: Sequence[tables.Cell], path: Path) -> None:
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


def mean_curve(cell: tables.Cell) -> list[tuple[int, float]]:
    curves = [{it.epoch: it.dev_score for it in outcome.epochs} for outcome in cell.outcomes]
    shared = set[int].intersection(*map(set, curves)) if curves else set[int]()
    return [(epoch, mean(curve[epoch] for curve in curves)) for epoch in sorted(shared)]


def panels_by_task(
    cells: Sequence[tables.Cell],
) -> tuple[Figure, list[tuple[Axes, tuple[str, list[tables.Cell]]]]]:
    by_task: dict[str, list[tables.Cell]] = {}
    for cell in cells:
        by_task.setdefault(cell.axes[TASK], []).append(cell)
    num_rows = -(-len(by_task) // COLUMNS_OF_PLOTS)
    num_columns = min(COLUMNS_OF_PLOTS, len(by_task))
    # Not a figure of pyplot, because pyplot keeps its figures in a global list.
    drawing = Figure(figsize=(5.5 * num_columns, 4 * num_rows), layout="constrained")
    grid = drawing.subplots(num_rows, num_columns, squeeze=False)
    for axes in grid.flat:
        axes.set_prop_cycle(LOOKS)
    for spare in grid.flat[len(by_task) :]:
        spare.set_axis_off()
    return drawing, list(zip(grid.flat, by_task.items(), strict=False))


def label_of(cell: tables.Cell, cells: Sequence[tables.Cell]) -> str:
    """The axes that vary in the sweep, except the task."""
    varied = [
        value
        for column, value in enumerate(cell.axes)
        if column != TASK and len({other.axes[column] for other in cells}) > 1
    ]
    origins = [cell.origins[origin] for origin in tables.telling_origins(cells)]
    return ", ".join((*varied, *origins)) or "all seeds"


def legend_below(drawing: Figure, panels: Iterable[Axes]) -> None:
    found = dict[str, Artist]()
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    if not found:
        return
    width = drawing.get_figwidth() / (HANDLE + LETTER * max(map(len, found)))
    drawing.legend(
        list(found.values()),
        list(found),
        loc="outside lower center",
        ncols=max(1, min(len(found), int(width))),
        fontsize=LEGEND_SIZE,
        frameon=False,
    )


def whole_numbers(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
