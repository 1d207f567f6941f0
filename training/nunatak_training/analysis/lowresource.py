"""What a method gains over full fine-tuning, by the number of train examples.

He et al. 2021 (arXiv:2106.03164), sec. 3.2 and table 2: with 1k examples adapters are ahead of full
fine-tuning, with 5k by less.
"""

# matplotlib leaves the keyword arguments of its methods untyped.
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from matplotlib.figure import Figure

from nunatak_training.analysis.findings import Findings
from nunatak_training.errors import InvalidSweepError
from nunatak_training.sweeps.canvas import colours_of, legend_below
from nunatak_training.sweeps.records import RunRecord
from nunatak_training.sweeps.tables import COLUMNS, Cell, cells_of, deviation

BASELINE = "full"
TASK, METHOD = (tuple(COLUMNS).index(name) for name in ("task", "method"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """One method beside full fine-tuning on the same examples, at the best rate of each."""

    task: str
    num_train: int
    method: str
    score: float
    deviation: float
    baseline: float

    @property
    def gain(self) -> float:
        """How far it is ahead."""
        return self.score - self.baseline


def gains(cells: Sequence[Cell]) -> tuple[Gain, ...]:
    """Hold every method against full fine-tuning on the same task and number of examples.

    Of cells that differ in rate or regularizer alone, the best mean counts.

    Raises:
        InvalidSweepError: no run of full fine-tuning finished for some task and number.
    """
    best: dict[tuple[str, int, str], Cell] = {}
    for cell in cells:
        if cell.scores:
            key = cell.axes[TASK], cell.runs[0].data.num_train, cell.axes[METHOD]
            best[key] = max(best.get(key, cell), cell, key=lambda it: mean(it.scores))
    return tuple(
        Gain(
            task=task,
            num_train=num_train,
            method=method,
            score=mean(cell.scores),
            deviation=deviation(cell.scores),
            baseline=mean(_baseline(best, task, num_train).scores),
        )
        for (task, num_train, method), cell in sorted(best.items())
        if method != BASELINE
    )


def average_gains(found: Sequence[Gain]) -> dict[tuple[str, int], float]:
    """The mean gain over tasks, by method and number of examples."""
    keys = sorted({(it.method, it.num_train) for it in found})
    return {key: mean(it.gain for it in found if (it.method, it.num_train) == key) for key in keys}


def analyze_lowresource(records: Sequence[RunRecord]) -> Findings:
    """Gains over full fine-tuning, as bars by task."""
    found = gains(cells_of(records))
    average = tuple(
        ("average", str(number), method, "", "", "", gain)
        for (method, number), gain in average_gains(found).items()
    )
    return Findings(
        name="lowresource",
        header=("task", "examples", "method", "score", "std", "full", "gain"),
        rows=(
            *(
                (
                    it.task,
                    str(it.num_train),
                    it.method,
                    it.score,
                    it.deviation,
                    it.baseline,
                    it.gain,
                )
                for it in found
            ),
            *average,
        ),
        drawing=draw_gains(found),
    )


def draw_gains(found: Sequence[Gain]) -> Figure:
    """A group of bars a task, in it one for each method and number of examples."""
    tasks = list(dict.fromkeys(it.task for it in found))
    variants = list(dict.fromkeys((it.method, it.num_train) for it in found))
    height = 0.8 / max(len(variants), 1)
    drawing = Figure(figsize=(7, 1.6 + 0.3 * len(tasks) * len(variants)), layout="constrained")
    axes = drawing.subplots()
    labels = [f"{method}, {num_train} examples" for method, num_train in variants]
    for place, ((method, num_train), colour) in enumerate(
        zip(variants, colours_of(labels), strict=True)
    ):
        its = [it for it in found if (it.method, it.num_train) == (method, num_train)]
        axes.barh(
            [tasks.index(it.task) + (place + 0.5) * height - 0.4 for it in its],
            [it.gain for it in its],
            xerr=[it.deviation for it in its],
            height=height,
            capsize=2,
            color=colour,
            label=labels[place],
        )
    axes.axvline(0, color="black", lw=0.8)
    axes.set_yticks(range(len(tasks)), tasks)
    axes.invert_yaxis()
    axes.set_xlabel("score above full fine-tuning (bars: standard deviation over seeds)")
    legend_below(drawing, [axes])
    return drawing


def _baseline(cells: dict[tuple[str, int, str], Cell], task: str, num_train: int) -> Cell:
    cell = cells.get((task, num_train, BASELINE))
    if cell is None:
        raise InvalidSweepError(
            task, f"expected a finished run of full fine-tuning on {num_train} examples"
        )
    return cell
