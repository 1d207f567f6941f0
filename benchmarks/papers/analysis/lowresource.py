"""The gain of a method over full fine-tuning, by the number of train examples.

He et al. 2021 (arXiv:2106.03164), sec. 3.2 and table 2: adapters are better than full fine-tuning
with 1k examples, and slightly better with 5k.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from matplotlib.figure import Figure

from benchmarks.papers.analysis.findings import Findings, finished_cells
from benchmarks.papers.analysis.lines import colours_of
from nunatak_contract.errors import NunatakError
from nunatak_training.sweeps.reporting import AXES, Cell, deviation, legend_below
from nunatak_training.sweeps.results import BackboneDescription, DataDescription, RunRecord

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

    Raises:
        NunatakError: `invalid_sweep`, for some examples no run of full fine-tuning has finished.
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


def _dev_score(cell: Cell) -> float:
    return mean(outcome.scores[outcome.metric] for outcome in cell.outcomes)
