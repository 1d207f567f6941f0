"""The gain of a method over full fine-tuning, by the number of train examples.

He et al. 2021 (arXiv:2106.03164), sec. 3.2 and table 2: adapters are better than full fine-tuning
with 1k examples, and slightly better with 5k.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from matplotlib.figure import Figure

from benchmarks.papers.analysis.findings import Findings, finished_cells
from benchmarks.papers.analysis.lines import colours_of
from nunatak_contract.errors import NunatakError
from nunatak_training.sweeps.reporting import AXES, Cell, deviation, legend_below
from nunatak_training.sweeps.results import (
    BackboneDescription,
    DataDescription,
    RunDescription,
    RunRecord,
)

BASELINE = "full"
METHOD = tuple(AXES).index("method")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ground:
    """The settings that two methods must share to be compared."""

    task: str
    backbone: BackboneDescription
    data: DataDescription

    def gain(self, method: str, cell: Cell, baseline: Cell) -> Gain:
        return Gain(
            task=self.task,
            backbone=self.backbone.name,
            num_train=self.data.num_train,
            method=method,
            score=mean(cell.scores),
            deviation=deviation(cell.scores),
            baseline=mean(baseline.scores),
        )


def gains(cells: Sequence[Cell]) -> tuple[Gain, ...]:
    """Compare every method with full fine-tuning of the same backbone on the same examples.

    Of cells that differ only in learning rate or regularizer, the cell with the best mean on dev
    examples counts, also if the scores are of test examples.

    Raises:
        NunatakError: `invalid_sweep`, for some examples no run of full fine-tuning has finished.
    """
    best: dict[tuple[_Ground, str], Cell] = {}
    for cell in cells:
        if cell.runs:
            key = _ground_of(cell.runs[0]), cell.axes[METHOD]
            best[key] = max(best.get(key, cell), cell, key=_dev_score)
    found = [
        ground.gain(method, cell, _baseline(best, ground))
        for (ground, method), cell in best.items()
        if method != BASELINE
    ]
    return tuple(sorted(found, key=lambda it: (it.task, it.backbone, it.num_train, it.method)))


def average_gains(found: Sequence[Gain]) -> dict[tuple[str, str, int], float]:
    """Return the mean gain over tasks, by backbone, method and number of examples."""
    by_setting = defaultdict[tuple[str, str, int], list[float]](list)
    for it in found:
        by_setting[it.backbone, it.method, it.num_train].append(it.gain)
    return {setting: mean(by_setting[setting]) for setting in sorted(by_setting)}


def analyze_lowresource(records: Sequence[RunRecord]) -> Findings:
    """Compute the gains over full fine-tuning, drawn as bars by task.

    Raises:
        NunatakError: `invalid_sweep`, no run has finished, or no run of full fine-tuning.
    """
    found = gains(finished_cells(records))
    average = tuple(
        ("average", backbone, str(number), method, "", "", "", gain)
        for (backbone, method, number), gain in average_gains(found).items()
    )
    return Findings(
        name="lowresource",
        header=("task", "backbone", "examples", "method", "score", "std", "full", "gain"),
        rows=(
            *(
                (
                    it.task,
                    it.backbone,
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


def _ground_of(run: RunDescription) -> _Ground:
    return _Ground(task=run.task, backbone=run.backbone, data=run.data)


def _dev_score(cell: Cell) -> float:
    return mean(outcome.scores[outcome.metric] for outcome in cell.outcomes)


def _baseline(cells: Mapping[tuple[_Ground, str], Cell], ground: _Ground) -> Cell:
    cell = cells.get((ground, BASELINE))
    if cell is None:
        raise NunatakError(
            "invalid_sweep",
            where=ground.task,
            problem=f"expected a finished run of full fine-tuning on {ground.data.num_train} "
            "examples "
            f"with backbone {ground.backbone.name}",
        )
    return cell
