"""The table of Lee, Tang and Lin 2019/2020, "What Would Elsa Do?", from a sweep's results.

Relative performance: the mean score of the seeds with the lowest N layers frozen, divided by the
score of full fine-tuning (sec. 3), averaged over tasks. The operating point is the largest N that
keeps 95 %.
"""

# matplotlib leaves the keyword arguments of its methods untyped.
# pyright: reportUnknownMemberType=false

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from nunatak_contract.cards import markdown_table
from nunatak_training.sweeps import Finished, RunRecord
from nunatak_training.sweeps.reporting import LOOKS, legend_below
from nunatak_training.sweeps.tables import deviation, num_frozen

TARGET = 0.95
LEFT_OUT = "cola"
"""The set that freezing hurts most, which the paper's first version sets aside."""
FULL = None
"""The number of frozen layers that stands for full fine-tuning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElsaTable:
    """Scores of the seeds by task and frozen layers."""

    num_layers: int
    metrics: Mapping[str, str]
    scores: Mapping[tuple[str, int | None], tuple[float, ...]]

    @property
    def tasks(self) -> list[str]:
        """The tasks with scores of full fine-tuning."""
        return sorted(task for task, frozen in self.scores if frozen is FULL)

    @property
    def depths(self) -> list[int]:
        """Numbers of frozen layers that every task has runs for."""
        tried = [
            {frozen for name, frozen in self.scores if name == task and frozen is not None}
            for task in self.tasks
        ]
        return sorted(set[int].intersection(*tried))

    def relative(self, task: str, frozen: int) -> float:
        """Share of the quality of full fine-tuning that a task keeps."""
        return mean(self.scores[task, frozen]) / mean(self.scores[task, FULL])

    def average(self, frozen: int, *, without: str | None = None) -> float:
        """Return the mean of `relative` over all tasks, except the task `without`."""
        tasks = [task for task in self.tasks if task != without]
        return mean(self.relative(task, frozen) for task in tasks)

    def operating_point(self, target: float = TARGET) -> int | None:
        """The largest number of frozen layers that keeps the target on average."""
        return max((it for it in self.depths if self.average(it) >= target), default=None)

    def markdown(self) -> str:
        """Return mean and deviation of each task, and relative performance in percent."""
        names = [f"frozen {frozen}" for frozen in self.depths]
        rows = [
            [task, self.metrics[task], _spread(self.scores[task, FULL])]
            + [
                f"{_spread(self.scores[task, frozen])} ({self.relative(task, frozen):.1%})"
                for frozen in self.depths
            ]
            for task in self.tasks
        ]
        averages = [["average", "", "100 %", *(f"{self.average(it):.1%}" for it in self.depths)]]
        if LEFT_OUT in self.tasks and len(self.tasks) > 1:
            others = (f"{self.average(it, without=LEFT_OUT):.1%}" for it in self.depths)
            averages.append([f"average without {LEFT_OUT}", "", "100 %", *others])
        return markdown_table(["task", "metric", "full", *names], [*rows, *averages])


def elsa_table(records: Sequence[RunRecord]) -> ElsaTable:
    """Return the table of the finished runs; tasks without full fine-tuning are left out."""
    scores: defaultdict[tuple[str, int | None], list[float]] = defaultdict(list)
    metrics: dict[str, str] = {}
    for record in records:
        if isinstance(record.outcome, Finished):
            scores[record.run.task, num_frozen(record.run)].append(record.outcome.score)
            metrics[record.run.task] = record.outcome.metric
    return ElsaTable(
        num_layers=records[0].run.backbone.num_layers,
        metrics=metrics,
        scores={key: tuple(values) for key, values in scores.items()},
    )


def draw_relative(table: ElsaTable) -> Figure:
    """Draw relative performance over frozen layers, one line per task, as the paper's figure 1."""
    drawing = Figure(figsize=(7, 5.4), layout="constrained")
    axes = drawing.subplots()
    axes.set_prop_cycle(LOOKS)
    for task in table.tasks:
        shares = [table.relative(task, frozen) for frozen in table.depths]
        axes.plot(table.depths, shares, ms=5, lw=1.2, label=task)
    averages = [table.average(frozen) for frozen in table.depths]
    axes.plot(table.depths, averages, marker="s", ms=6, lw=2.5, color="black", label="average")
    axes.axhline(TARGET, ls="--", lw=1.2, color="black", label=f"goal: {TARGET:.0%}")
    axes.set_xticks(table.depths)
    axes.set(
        xlabel=f"frozen layers of {table.num_layers}", ylabel="score, of that of full fine-tuning"
    )
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    legend_below(drawing, [axes])
    return drawing


def _spread(scores: Sequence[float]) -> str:
    return f"{mean(scores):.3f} ± {deviation(scores):.3f}"
