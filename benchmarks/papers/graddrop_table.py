"""The table of O'Neill and Dutta 2023, "Gradient Sparsification For Masked Fine-Tuning"."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

from matplotlib.figure import Figure

from benchmarks.papers.elsa_table import named
from nunatak_contract.cards import markdown_table
from nunatak_training.recipes import Schedule
from nunatak_training.sweeps.reporting import (
    TASK,
    Cell,
    cells_of,
    deviation,
    legend_below,
    mean_curve,
    panels_by_task,
    whole_numbers,
)
from nunatak_training.sweeps.results import RunRecord

SFT = "dropout 0.2"
"""The sweep's name for standard fine-tuning with dropout at the rate of GradDrop."""


def variant_of(cell: Cell) -> str:
    """The regularizer, and the schedule if the learning rate does not fall."""
    is_constant = cell.runs[0].recipe.schedule is Schedule.CONSTANT
    return cell.columns["regularizer"] + (", constant rate" if is_constant else "")


def graddrop_cells(records: Sequence[RunRecord]) -> list[Cell]:
    """Return the settings with scores of the seeds that a task has in all, the standard first."""
    # A seed of the plan also draws the examples, which are no setting then.
    drawn = [
        it.model_copy(update={"run": it.run.model_copy(update={"data": data})})
        for it in records
        for data in [it.run.data.model_copy(update={"train_digest": ""})]
    ]
    seeds, whole = dict[str, set[int]](), list[Cell]()
    cells = [cell for cell in cells_of(drawn) if cell.scores]
    for cell in cells:
        own = {it.recipe.seed for it in cell.runs}
        seeds[cell.columns[TASK]] = seeds.get(cell.columns[TASK], own) & own
    for cell in cells:
        pairs = zip(cell.runs, cell.outcomes, strict=True)
        kept = [it for it in pairs if it[0].recipe.seed in seeds[cell.columns[TASK]]]
        if kept:
            runs, outcomes = zip(*kept, strict=True)
            whole.append(replace(cell, runs=runs, outcomes=outcomes))
    return sorted(whole, key=lambda cell: (variant_of(cell) != SFT, variant_of(cell)))


def graddrop_markdown(cells: Sequence[Cell]) -> str:
    """Return a row per variant: mean and deviation per task, and the average next to SFT's.

    The average is over the tasks that all variants have.
    """
    by_key = {(variant_of(cell), cell.columns[TASK]): cell for cell in cells}
    tasks = sorted({task for _, task in by_key})
    variants = list(dict.fromkeys(variant for variant, _ in by_key))
    whole = [task for task in tasks if all((it, task) in by_key for it in variants)]
    averages = {it: average(by_key, it, whole) if whole else 0.0 for it in variants}
    rows = [
        [
            "SFT" if variant == SFT else variant,
            *(_spread(by_key, variant, task) for task in tasks),
            f"{averages[variant]:.4f}" if whole else "",
        ]
        for variant in sorted(variants, key=lambda it: -averages[it])
    ]
    return markdown_table(
        ["variant", *tasks, f"average of {named(whole)}" if whole else "average"], rows
    )


def average(cells: dict[tuple[str, str], Cell], variant: str, tasks: Sequence[str]) -> float:
    return mean(mean(cells[variant, task].scores) for task in tasks)


def draw_curves(cells: Sequence[Cell]) -> Figure:
    """Draw dev score over epochs, one panel per task, with standard fine-tuning in black."""
    drawing, panels = panels_by_task(cells)
    for axes, (task, members) in panels:
        for cell in members:
            points = mean_curve(cell)
            is_sft = variant_of(cell) == SFT
            (line,) = axes.plot(
                [epoch for epoch, _ in points],
                [score for _, score in points],
                label="SFT" if is_sft else variant_of(cell),
                lw=2.5 if is_sft else 1.2,
                ms=5,
            )
            if is_sft:
                line.set_color("black")
        whole_numbers(axes)
        axes.set(title=task, xlabel="epoch", ylabel="dev score")
    legend_below(drawing, [axes for axes, _ in panels])
    return drawing


def _spread(cells: dict[tuple[str, str], Cell], variant: str, task: str) -> str:
    if (variant, task) not in cells:
        return ""
    scores = cells[variant, task].scores
    one = f"{mean(scores):.3f}"
    return f"{one} ± {deviation(scores):.3f}" if len(scores) > 1 else one
