"""The picture of frozen layers: memory over tasks, and quality kept over memory saved."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from benchmarks.papers.elsa_memory import OWN, TASKS, Memory
from benchmarks.papers.elsa_table import LEFT_OUT, ElsaTable
from benchmarks.savings.systems import System
from nunatak_model import parameters_saved
from nunatak_training.sweeps.reporting import COLOURS, legend_below

SHOWN_OWN = 3
"""The own layers of a fourth of the model, the paper's point."""
FLOAT32_BYTES = 4
PAPER = {6: 0.9845, 7: 0.9737, 8: 0.9612, 9: 0.9545, 10: 0.937, 11: 0.9007, 12: 0.5903}
"""Quality kept by RoBERTa base with N layers frozen (Lee, Tang and Lin 2020, A.3)."""


def draw(memory: Memory | None, table: ElsaTable | None) -> Figure:
    """Draw memory over tasks, and quality over memory; the colour of k is the same in both."""
    drawing = Figure(figsize=(12, 5.2), layout="constrained")
    left, right = drawing.subplots(1, 2)
    if memory is not None:
        draw_memory(left, memory)
    draw_quality(right, memory, table)
    legend_below(drawing, [left, right])
    return drawing


def draw_memory(axes: Axes, memory: Memory) -> None:
    """Draw the measured PSS as points and the formula as lines, over the number of tasks."""
    size, count = memory.size, memory.num_tasks
    floor = memory.runtime[System.NUNATAK]
    axes.axhspan(0, floor / 1e9, color="#e8e8e8", label="runtime without weights")
    tasks = range(1, count + 1)
    for own, colour in zip(sorted(memory.ours), COLOURS, strict=False):
        shared = size.embedding + (size.num_layers - own) * size.per_layer
        each = own * size.per_layer + size.output
        predicted = [(floor + FLOAT32_BYTES * (shared + it * each)) / 1e9 for it in tasks]
        axes.plot(tasks, predicted, ls="--", lw=1, color=colour)
        measured = [it / 1e9 for it in memory.ours[own]]
        axes.plot(tasks, measured, ls="", marker="o", ms=5, color=colour, label=f"{own} own layers")
    for copies, system, mark, label in (
        (memory.private, System.FULL_MODELS_PRIVATE, "s", "full copies, private pages"),
        (memory.mapped, System.FULL_MODELS, "^", "full copies, mapped, one text each"),
    ):
        base = memory.runtime[system]
        if system is System.FULL_MODELS_PRIVATE:
            predicted = [(base + FLOAT32_BYTES * it * size.total) / 1e9 for it in tasks]
            axes.plot(tasks, predicted, ls="--", lw=1, color="black", label="formula")
        values = [it / 1e9 for it in copies.values()]
        axes.plot(list(copies), values, ls="", marker=mark, ms=6, color="black", label=label)
    draw_gap(axes, memory)
    axes.set(xlabel="tasks in memory", ylabel="GB of the process (PSS)", xlim=(0.5, count + 0.5))
    axes.set_ylim(bottom=0)


def draw_gap(axes: Axes, memory: Memory) -> None:
    """Draw the arrow from full copies down to the tasks with the shown number of own layers."""
    if SHOWN_OWN not in memory.ours:
        return
    count = memory.num_tasks
    ours, copies = memory.ours[SHOWN_OWN][count - 1] / 1e9, memory.private[count] / 1e9
    axes.annotate("", (count, ours), xytext=(count, copies), arrowprops={"arrowstyle": "->"})
    share, formula = memory.saved_private(SHOWN_OWN), memory.formula(SHOWN_OWN)
    said = f"saved {share:.1%}\n(formula {formula:.1%})"
    axes.annotate(said, (count - 0.15, (ours + copies) / 2), ha="right", va="center")


def draw_quality(axes: Axes, memory: Memory | None, table: ElsaTable | None) -> None:
    """Draw quality kept over the share saved, with the paper's curve behind."""
    size = memory.size if memory else None
    num_tasks = memory.num_tasks if memory else len(TASKS)

    def place(frozen: int) -> float:
        return (
            frozen
            if size is None
            else parameters_saved(size, num_tasks=num_tasks, num_frozen=frozen)
        )

    axes.plot(
        [place(it) for it in PAPER], list(PAPER.values()), color="#8a8f96", lw=1.2, marker=".",
        label="the paper's RoBERTa base",
    )  # fmt: skip
    colours = dict[int, str](zip(sorted(OWN), COLOURS, strict=False))
    if table is not None:
        for frozen in table.depths:
            draw_point(axes, table, frozen, memory, place(frozen), colours)
    axes.axhline(0.95, ls=":", lw=1, color="black")
    axes.set(
        xlabel=f"saved with {num_tasks} tasks" if size else "frozen layers",
        ylabel="quality of full fine-tuning kept",
    )
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    if size is not None:
        axes.xaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))


def draw_point(
    axes: Axes,
    table: ElsaTable,
    frozen: int,
    memory: Memory | None,
    predicted: float,
    colours: Mapping[int, str],
) -> None:
    """Draw the quality at one depth, over the measured share, or over the formula's."""
    kept, own = table.average(frozen), table.num_layers - frozen
    is_measured = memory is not None and own in memory.ours
    across = memory.saved_private(own) if memory is not None and is_measured else predicted
    low, high = kept.low, kept.high
    bars = None if low is None or high is None else [[kept.mean - low], [high - kept.mean]]
    colour = colours.get(own, "black")
    axes.errorbar([across], [kept.mean], yerr=bars, fmt="o", ms=6, capsize=3, color=colour)
    if LEFT_OUT in table.learned and len(table.learned) > 1:
        others = table.average(frozen, without=LEFT_OUT).mean
        label = f"without {LEFT_OUT}" if frozen == table.depths[0] else None
        axes.plot(
            [across], [others], marker="o", ms=6, mfc="none", ls="", color=colour, label=label
        )
    where = (across, kept.mean)
    axes.annotate(f"N = {frozen}", where, xytext=(5, 5), textcoords="offset points")
