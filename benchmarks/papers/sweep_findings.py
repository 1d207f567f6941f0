"""Findings from the results of a sweep: a table and a plot each.

He et al. 2021 (arXiv:2106.03164): adapters are better than full fine-tuning with 1k examples, and
slightly better with 5k (sec. 3.2, table 2); box plots over seeds at each learning rate (sec. 5,
figure 4).
"""

import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import cycle
from pathlib import Path
from statistics import mean
from types import MappingProxyType

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nunatak_contract.cards import markdown_table
from nunatak_contract.errors import NunatakError
from nunatak_training.sweeps.reporting import (
    AXES,
    COLOURS,
    LOOKS,
    Cell,
    cells_of,
    deviation,
    legend_below,
    panels_by_task,
)
from nunatak_training.sweeps.results import BackboneDescription, DataDescription, RunRecord

COLOURS_OF_METHODS = MappingProxyType(
    {
        "full": "#d55e00",
        "bottleneck 64": "#0072b2",
        "bottleneck 256": "#56b4e9",
        "lora 8": "#009e73",
        "head": "#8a8f96",
    }
)
"""The colours of methods, the same in every plot."""


def colours_of(names: Sequence[str]) -> list[str]:
    """Return a colour per setting: its method's colour, if no other setting has that method."""
    methods = [
        next((part for part in name.split(", ") if part in COLOURS_OF_METHODS), None)
        for name in names
    ]
    known = {it for it in methods if it is not None and methods.count(it) == 1}
    taken = {COLOURS_OF_METHODS[it] for it in known}
    spare = cycle(it for it in COLOURS if it not in taken)
    return [COLOURS_OF_METHODS[it] if it in known else next(spare) for it in methods]


def draw_lines(
    points: Sequence[tuple[str, float, float]], *, across: str, up: str
) -> tuple[Figure, Axes]:
    """Draw a line for each name; a point has a name, a position and a value."""
    drawing = Figure(figsize=(7, 5), layout="constrained")
    axes = drawing.subplots()
    axes.set_prop_cycle(LOOKS)
    names = list(dict.fromkeys(name for name, _, _ in points))
    for name, colour in zip(names, colours_of(names), strict=True):
        line = [(place, value) for it, place, value in points if it == name]
        places, values = [place for place, _ in line], [value for _, value in line]
        axes.plot(places, values, ms=5, color=colour, label=name)
    axes.set(xlabel=across, ylabel=up)
    legend_below(drawing, [axes])
    return drawing, axes


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """One table with a column for each name of the header, and its drawing."""

    name: str
    header: tuple[str, ...]
    rows: tuple[tuple[str | float, ...], ...]
    drawing: Figure

    def markdown(self) -> str:
        """The table in Markdown, with four digits per number."""
        return markdown_table(self.header, [[_shown(cell) for cell in row] for row in self.rows])


def save_findings(findings: Findings, folder: Path) -> tuple[Path, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = tuple(folder / f"{findings.name}.{suffix}" for suffix in ("csv", "md", "png"))
    table, page, drawing = paths
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([findings.header, *findings.rows])
    page.write_text(findings.markdown(), encoding="utf-8")
    findings.drawing.savefig(drawing, dpi=120)
    return paths


def _shown(cell: str | float) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def finished_cells(records: Sequence[RunRecord]) -> list[Cell]:
    """Return the settings with a finished run, in the order of the records."""
    cells = [cell for cell in cells_of(records) if cell.outcomes]
    if not cells:
        raise NunatakError(
            "invalid_sweep",
            where="results",
            problem=f"expected a run that finished, got {len(records)} that failed",
        )
    return cells


BASELINE = "full"
METHOD = tuple(AXES).index("method")
Ground = tuple[str, BackboneDescription, DataDescription]
"""What two methods must share to be compared: the task, the backbone and the examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """One method compared with full fine-tuning of the same backbone on the same examples.

    Both have the learning rate with the best score on dev examples.
    """

    task: str
    backbone: str
    num_train: int
    method: str
    score: float
    deviation: float
    baseline: float

    @property
    def gain(self) -> float:
        return self.score - self.baseline


def gains(cells: Sequence[Cell]) -> tuple[Gain, ...]:
    """Compare every method with full fine-tuning of the same backbone on the same examples.

    Of cells that differ only in learning rate or regularizer, the cell with the best mean on dev
    examples counts, also if the scores are of test examples.
    """
    by_ground = defaultdict[Ground, dict[str, Cell]](dict)
    for cell in cells:
        if cell.runs:
            run, method = cell.runs[0], cell.axes[METHOD]
            best = by_ground[run.task, run.backbone, run.data]
            best[method] = max(best.get(method, cell), cell, key=_dev_score)
    found = list[Gain]()
    for (task, backbone, data), best in by_ground.items():
        baseline = best.pop(BASELINE, None)
        if baseline is None:
            problem = f"expected a finished run of full fine-tuning on {data.num_train} examples "
            problem += f"with backbone {backbone.name}"
            raise NunatakError("invalid_sweep", where=task, problem=problem)
        found += [
            Gain(
                task=task,
                backbone=backbone.name,
                num_train=data.num_train,
                method=method,
                score=mean(cell.scores),
                deviation=deviation(cell.scores),
                baseline=mean(baseline.scores),
            )
            for method, cell in best.items()
        ]
    return tuple(sorted(found, key=lambda it: (it.task, it.backbone, it.num_train, it.method)))


def average_gains(found: Sequence[Gain]) -> dict[tuple[str, str, int], float]:
    """Return the mean gain over tasks, by backbone, method and number of examples."""
    by_setting = defaultdict[tuple[str, str, int], list[float]](list)
    for it in found:
        by_setting[it.backbone, it.method, it.num_train].append(it.gain)
    return {setting: mean(by_setting[setting]) for setting in sorted(by_setting)}


def analyze_lowresource(records: Sequence[RunRecord]) -> Findings:
    """Compute the gains over full fine-tuning, drawn as bars by task."""
    found = gains(finished_cells(records))
    average = (
        ("average", backbone, number, method, "", "", "", gain)
        for (backbone, method, number), gain in average_gains(found).items()
    )
    return Findings(
        name="lowresource",
        header=("task", "backbone", "examples", "method", "score", "std", "full", "gain"),
        rows=(*((*astuple(it), it.gain) for it in found), *average),
        drawing=draw_gains(found),
    )


def draw_gains(found: Sequence[Gain]) -> Figure:
    """Draw a group of bars per task and backbone, with a bar per method and number of examples."""
    grounds = list(dict.fromkeys(map(_named, found)))
    has_one_backbone = len({backbone for _, backbone in grounds}) == 1
    variants = list(dict.fromkeys((it.method, it.num_train) for it in found))
    height = 0.8 / max(len(variants), 1)
    drawing = Figure(figsize=(7, 1.6 + 0.3 * len(grounds) * len(variants)), layout="constrained")
    axes = drawing.subplots()
    labels = [f"{method}, {num_train} examples" for method, num_train in variants]
    for place, ((method, num_train), colour) in enumerate(
        zip(variants, colours_of(labels), strict=True)
    ):
        its = [it for it in found if (it.method, it.num_train) == (method, num_train)]
        axes.barh(
            [grounds.index(_named(it)) + (place + 0.5) * height - 0.4 for it in its],
            [it.gain for it in its],
            xerr=[it.deviation for it in its],
            height=height,
            capsize=2,
            color=colour,
            label=labels[place],
        )
    axes.axvline(0, color="black", lw=0.8)
    names = [task if has_one_backbone else f"{task}, {backbone}" for task, backbone in grounds]
    axes.set_yticks(range(len(grounds)), names)
    axes.invert_yaxis()
    axes.set_xlabel("score above full fine-tuning (bars: standard deviation over seeds)")
    legend_below(drawing, [axes])
    return drawing


def _named(gain: Gain) -> tuple[str, str]:
    return gain.task, gain.backbone


def _dev_score(cell: Cell) -> float:
    return mean(outcome.scores[outcome.metric] for outcome in cell.outcomes)


def box(scores: Sequence[float]) -> tuple[float, ...]:
    """Return minimum, quartiles (linear between neighbours) and maximum, as a box plot has them."""
    return tuple(np.quantile(scores, [0, 0.25, 0.5, 0.75, 1]).tolist())


def analyze_robustness(records: Sequence[RunRecord]) -> Findings:
    """Draw boxes over seeds for each method at each learning rate, one panel per task."""
    cells = finished_cells(records)
    cells.sort(key=lambda cell: (cell.axes[METHOD], cell.runs[0].recipe.learning_rate))
    drawing, panels = panels_by_task(cells)
    for axes, (task, members) in panels:
        draw_boxes(axes, members)
        axes.set(title=task, xlabel="learning rate", ylabel=members[0].outcomes[0].metric)
    legend_below(drawing, [axes for axes, _ in panels])
    return Findings(
        name="robustness",
        header=(*AXES, "min", "first quartile", "median", "third quartile", "max", "seeds"),
        rows=tuple((*cell.axes, *box(cell.scores), len(cell.scores)) for cell in cells),
        drawing=drawing,
    )


def draw_boxes(axes: Axes, cells: Sequence[Cell]) -> None:
    """Draw the boxes of all methods next to one another at each learning rate, in their colours."""
    methods = list(dict.fromkeys(cell.axes[METHOD] for cell in cells))
    rates = sorted({cell.runs[0].recipe.learning_rate for cell in cells})
    width = 0.8 / len(methods)
    for place, (method, colour) in enumerate(zip(methods, colours_of(methods), strict=True)):
        its = [cell for cell in cells if cell.axes[METHOD] == method]
        axes.boxplot(
            [list(cell.scores) for cell in its],
            positions=[
                rates.index(cell.runs[0].recipe.learning_rate) + (place + 0.5) * width - 0.4
                for cell in its
            ],
            widths=0.8 * width,
            whis=(0, 100),
            patch_artist=True,
            boxprops={"facecolor": colour},
            medianprops={"color": "black"},
            label=method,
        )
    axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
