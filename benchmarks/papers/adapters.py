"""The tables and plots of He et al. 2021, "On the Effectiveness of Adapter-based Tuning".

Gains over full fine-tuning by the number of train examples (arXiv:2106.03164, sec. 3.2 and table
2), and the dependence of the score on the learning rate and the seed (sec. 5 and figure 4).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import mean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nunatak_contract.cards import markdown_table
from nunatak_training.sweeps.reporting import (
    AXES,
    COLOURS,
    Cell,
    cells_of,
    deviation,
    legend_below,
    panels_by_task,
)
from nunatak_training.sweeps.results import BackboneDescription, DataDescription, RunRecord

FULL = "full"
COLOURS_OF_METHODS = {
    FULL: "#d55e00",
    "bottleneck 64": "#0072b2",
    "bottleneck 256": "#56b4e9",
    "lora 8": "#009e73",
    "head": "#8a8f96",
}
"""The colours of methods, the same in every plot."""


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
        """The score of the method minus the score of full fine-tuning."""
        return self.score - self.baseline


def gains(cells: Sequence[Cell]) -> list[Gain]:
    """Compare every method with full fine-tuning of the same backbone on the same examples.

    Of cells that differ only in learning rate or regularizer, the cell with the best mean on dev
    examples counts, also if the scores are of test examples.
    """
    best = dict[tuple[str, BackboneDescription, DataDescription, str], Cell]()
    for cell in (it for it in cells if it.runs):
        run = cell.runs[0]
        key = run.task, run.backbone, run.data, cell.columns["method"]
        best[key] = max(best.get(key, cell), cell, key=_dev_score)
    found = [
        Gain(
            task=task,
            backbone=backbone.name,
            num_train=data.num_train,
            method=method,
            score=mean(cell.scores),
            deviation=deviation(cell.scores),
            baseline=mean(best[task, backbone, data, FULL].scores),
        )
        for (task, backbone, data, method), cell in best.items()
        if method != FULL
    ]
    return sorted(found, key=lambda it: (it.task, it.backbone, it.num_train, it.method))


def average_gains(found: Sequence[Gain]) -> dict[tuple[str, str, int], float]:
    """Return the mean gain over tasks, by backbone, method and number of examples."""
    by_setting = defaultdict[tuple[str, str, int], list[float]](list)
    for it in found:
        by_setting[it.backbone, it.method, it.num_train].append(it.gain)
    return {setting: mean(by_setting[setting]) for setting in sorted(by_setting)}


def gains_over_full(records: Sequence[RunRecord]) -> tuple[str, Figure]:
    """Return the table of gains over full fine-tuning, and its bars by task."""
    found = gains(cells_of(records))
    rows = [
        [it.task, it.backbone, str(it.num_train), it.method]
        + [f"{number:.4g}" for number in (it.score, it.deviation, it.baseline, it.gain)]
        for it in found
    ] + [
        ["average", backbone, str(number), method, "", "", "", f"{gain:.4g}"]
        for (backbone, method, number), gain in average_gains(found).items()
    ]
    header = ("task", "backbone", "examples", "method", "score", "std", "full", "gain")
    return markdown_table(header, rows), draw_gains(found)


def draw_gains(found: Sequence[Gain]) -> Figure:
    """Draw a group of bars per task and backbone, with a bar per method and number of examples."""
    grounds = list(dict.fromkeys((it.task, it.backbone) for it in found))
    has_one_backbone = len({backbone for _, backbone in grounds}) == 1
    variants = list(dict.fromkeys((it.method, it.num_train) for it in found))
    height = 0.8 / max(len(variants), 1)
    drawing = Figure(figsize=(7, 1.6 + 0.3 * len(grounds) * len(variants)), layout="constrained")
    axes = drawing.subplots()
    labels = [f"{method}, {num_train} examples" for method, num_train in variants]
    for place, (variant, colour) in enumerate(zip(variants, colours_of(labels), strict=True)):
        its = [it for it in found if (it.method, it.num_train) == variant]
        lowest = (place + 0.5) * height - 0.4
        axes.barh(
            [grounds.index((it.task, it.backbone)) + lowest for it in its],
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


def box(scores: Sequence[float]) -> list[float]:
    """Return minimum, quartiles (linear between neighbours) and maximum, as a box plot has them."""
    return np.quantile(scores, [0, 0.25, 0.5, 0.75, 1]).tolist()


def boxes_over_rates(records: Sequence[RunRecord]) -> tuple[str, Figure]:
    """Return a row and a box over seeds for each method at each learning rate, a panel a task."""
    cells = [cell for cell in cells_of(records) if cell.outcomes]
    cells.sort(key=lambda cell: (cell.columns["method"], rate_of(cell)))
    drawing, panels = panels_by_task(cells)
    for axes, (task, members) in panels:
        draw_boxes(axes, members)
        axes.set(title=task, xlabel="learning rate", ylabel=members[0].outcomes[0].metric)
    legend_below(drawing, [axes for axes, _ in panels])
    header = (*AXES, "min", "first quartile", "median", "third quartile", "max", "seeds")
    rows = [
        [*cell.axes, *(f"{it:.4g}" for it in (*box(cell.scores), len(cell.scores)))]
        for cell in cells
    ]
    return markdown_table(header, rows), drawing


def draw_boxes(axes: Axes, cells: Sequence[Cell]) -> None:
    """Draw the boxes of all methods next to one another at each learning rate, in their colours."""
    methods = list(dict.fromkeys(cell.columns["method"] for cell in cells))
    rates = sorted(set(map(rate_of, cells)))
    width = 0.8 / len(methods)
    for place, (method, colour) in enumerate(zip(methods, colours_of(methods), strict=True)):
        its = [cell for cell in cells if cell.columns["method"] == method]
        axes.boxplot(
            [list(cell.scores) for cell in its],
            positions=[rates.index(rate_of(it)) + (place + 0.5) * width - 0.4 for it in its],
            widths=0.8 * width,
            whis=(0, 100),
            patch_artist=True,
            boxprops={"facecolor": colour},
            medianprops={"color": "black"},
            label=method,
        )
    axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])


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


def rate_of(cell: Cell) -> float:
    """The learning rate of a setting."""
    return cell.runs[0].recipe.learning_rate


def _dev_score(cell: Cell) -> float:
    return mean(outcome.scores[outcome.metric] for outcome in cell.outcomes)
