"""The tables of Lee, Tang and Lin 2019/2020, "What Would Elsa Do?", from the lines of runs.

Relative performance: the mean score of the seeds with the lowest N layers frozen, divided by the
score of full fine-tuning (sec. 3), averaged over tasks. Scores are of the last epoch. A task whose
full fine-tuning is not above the best constant answer says nothing, and enters no average.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from benchmarks.papers.claims import Estimate, estimate
from benchmarks.papers.lines import PaperRun
from nunatak_contract.cards import markdown_table
from nunatak_training.sweeps.reporting import LOOKS, deviation, legend_below, num_frozen
from nunatak_training.sweeps.results import Finished

AVERAGE_TARGET, TASK_TARGET = 0.95, 0.9
"""The shares of the second version (on average) and of the first version (of each task)."""
LEFT_OUT = "cola"
"""The set that freezing hurts most, which the first version sets aside."""
FULL = None
"""The number of frozen layers that stands for full fine-tuning."""
FAIR_STEPS = 467
"""Steps of the paper's shortest runs: RTE, 2,490 examples in batches of 16, 3 epochs."""
DEVIATIONS = 3
"""Deviations by which full fine-tuning must beat the best constant answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElsaTable:
    """Scores by task, frozen layers and seed."""

    num_layers: int
    metrics: Mapping[str, str]
    majority: Mapping[str, float]
    """The score of the best constant answer of each task."""
    num_dev: Mapping[str, int]
    num_steps: int
    """Optimizer steps of the shortest run."""
    scores: Mapping[tuple[str, int | None], Mapping[int, float]]

    @property
    def depths(self) -> list[int]:
        return sorted({frozen for _, frozen in self.scores if frozen is not None})

    @property
    def tasks(self) -> list[str]:
        """The tasks with runs of full fine-tuning and of every depth."""
        return [
            task
            for task in sorted({task for task, _ in self.scores})
            if all((task, frozen) in self.scores for frozen in (FULL, *self.depths))
        ]

    @property
    def unfinished(self) -> list[str]:
        """The other tasks, which no average counts."""
        return sorted({task for task, _ in self.scores} - set(self.tasks))

    @property
    def learned(self) -> list[str]:
        """The tasks whose full fine-tuning beats the best constant answer by three deviations."""
        return [task for task in self.tasks if self.is_learned(task)]

    def is_learned(self, task: str) -> bool:
        """Whether full fine-tuning is above the best constant answer by three deviations.

        One seed has no deviation over seeds; the deviation of a share of the dev examples then
        stands for it.
        """
        scores = tuple(self.scores[task, FULL].values())
        spread = deviation(scores) if len(scores) > 1 else 0.5 / sqrt(self.num_dev[task])
        return mean(scores) > self.majority[task] + DEVIATIONS * spread

    def relative(self, task: str, frozen: int) -> float:
        """Share of the quality of full fine-tuning that a task keeps."""
        return self._mean(task, frozen) / self._mean(task, FULL)

    def average(self, frozen: int, *, without: str | None = None) -> Estimate:
        """Return the mean of `relative` over the learned tasks, with its interval over seeds."""
        kept = self.kept(frozen).values()
        return estimate([mean(it for task, it in one.items() if task != without) for one in kept])

    def kept(self, frozen: int) -> dict[int, dict[str, float]]:
        """The share that each learned task keeps, by the seeds that all of them have."""
        tasks = self.learned
        seeds = [set(self.scores[task, depth]) for task in tasks for depth in (frozen, FULL)]
        return {
            seed: {
                task: self.scores[task, frozen][seed] / self.scores[task, FULL][seed]
                for task in tasks
            }
            for seed in sorted(set[int].intersection(*seeds))
        }

    def operating_point(self) -> int | None:
        """The largest number of frozen layers that keeps 95 % on average (second version)."""
        kept = [it for it in self.depths if self.average(it).mean >= AVERAGE_TARGET]
        return max(kept, default=None) if self.learned else None

    def operating_point_by_task(self) -> int | None:
        """The largest number at which each task but CoLA keeps 90 % (first version)."""
        tasks = [task for task in self.learned if task != LEFT_OUT]
        kept = [
            depth
            for depth in self.depths
            if all(self.relative(task, depth) >= TASK_TARGET for task in tasks)
        ]
        return max(kept, default=None) if tasks else None

    def markdown(self) -> str:
        """Return mean and deviation of each task, and relative performance in percent."""
        names = [f"frozen {frozen}" for frozen in self.depths]
        rows = [
            [
                task if self.is_learned(task) else f"{task} (at chance)",
                self.metrics[task],
                f"{self.majority[task]:.3f}",
                self._spread(task, FULL),
                *(
                    f"{self._spread(task, frozen)} ({self.relative(task, frozen):.1%})"
                    for frozen in self.depths
                ),
            ]
            for task in self.tasks
        ]
        for without in (None, LEFT_OUT):
            if set(self.learned) - {without}:
                shares = (self.average(it, without=without).text("{:.1%}") for it in self.depths)
                name = "average" if without is None else f"average without {without}"
                rows.append([name, "", "", "100 %", *shares])
        return markdown_table(["task", "metric", "majority", "full", *names], rows)

    def _mean(self, task: str, frozen: int | None) -> float:
        return mean(self.scores[task, frozen].values())

    def _spread(self, task: str, frozen: int | None) -> str:
        return spread(tuple(self.scores[task, frozen].values()))


def spread(scores: Sequence[float]) -> str:
    one = f"{mean(scores):.3f}"
    return one if len(scores) == 1 else f"{one} ± {deviation(scores):.3f}"


def elsa_tables(runs: Sequence[PaperRun]) -> dict[str, ElsaTable]:
    groups = defaultdict[str, list[PaperRun]](list)
    for run in runs:
        if isinstance(run.outcome, Finished) and run.majority is not None:
            groups[setting_of(run)].append(run)
    return {setting: elsa_table(them) for setting, them in sorted(groups.items())}


def best_table(tables: Mapping[str, ElsaTable]) -> tuple[str, ElsaTable] | None:
    """Return the setting of enough steps with the most tasks above chance; None: no runs.

    Enough is as many as the paper's shortest runs. Settings of fewer steps come after these, and
    settings of one task after all others.
    """
    ranked = sorted(
        (len(table.learned) > 1, table.num_steps >= FAIR_STEPS, len(table.learned), name)
        for name, table in tables.items()
        if table.learned
    )
    if not ranked:
        return None
    *_, name = ranked[-1]
    return name, tables[name]


def setting_of(run: PaperRun) -> str:
    recipe, cap = run.run.recipe, run.run.train_cap
    parts = [
        f"{run.run.backbone.name}",
        "all examples" if cap is None else f"{cap} examples",
        f"{recipe.epochs} epochs",
        str(recipe.precision),
    ]
    if recipe.dense:
        parts.append("the papers' head")
    return ", ".join(parts)


def elsa_table(runs: Sequence[PaperRun]) -> ElsaTable:
    scores: defaultdict[tuple[str, int | None], dict[int, float]] = defaultdict(dict)
    for run in runs:
        scores[run.run.task, num_frozen(run.run)][run.run.recipe.seed] = run.last_score
    return ElsaTable(
        num_layers=runs[0].run.backbone.num_layers,
        metrics={run.run.task: run.finished.metric for run in runs},
        majority={run.run.task: run.majority or 0.0 for run in runs},
        num_dev={run.run.task: run.run.data.num_dev for run in runs},
        num_steps=min(run.finished.epochs[-1].step or 0 for run in runs),
        scores=scores,
    )


def named(tasks: Sequence[str]) -> str:
    return tasks[0] if len(tasks) == 1 else f"{', '.join(tasks[:-1])} and {tasks[-1]}"


def draw_relative(table: ElsaTable) -> Figure:
    """Draw relative performance over frozen layers, one line per task, as the paper's figure 1."""
    drawing = Figure(figsize=(7, 5.4), layout="constrained")
    axes = drawing.subplots()
    axes.set_prop_cycle(LOOKS)
    for task in table.learned:
        shares = [table.relative(task, frozen) for frozen in table.depths]
        axes.plot(table.depths, shares, ms=5, lw=1.2, label=task)
    averages = [table.average(frozen).mean for frozen in table.depths]
    axes.plot(table.depths, averages, marker="s", ms=6, lw=2.5, color="black", label="average")
    axes.axhline(AVERAGE_TARGET, ls="--", lw=1.2, color="black", label=f"{AVERAGE_TARGET:.0%}")
    axes.set_xticks(table.depths)
    axes.set(
        xlabel=f"frozen layers of {table.num_layers}", ylabel="score, of that of full fine-tuning"
    )
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    legend_below(drawing, [axes])
    return drawing
