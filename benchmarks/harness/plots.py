"""Plots of the newest figures, as SVG files for docs/results."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from benchmarks.harness.recording import Figure
from nunatak_training.sweeps.reporting import COLOURS as SERIES_COLOURS
from nunatak_training.sweeps.reporting import MARKERS

Figures = Mapping[str, Figure]
NUM_LAYERS = 12
"""Layers of the fan-out's backbone, which has the shape of BERT base."""
DTYPES = ("fp32", "bf16")
WAYS = {"top-3": "three top layers", "lora-middle": "LoRA from the middle", "head": "head alone"}
"""Ways of sharing in the race of five."""
INK, SPARE = "black", "#8a8f96"
COLOURS = {
    "nunatak": "#009e73",
    "transformers": "#d55e00",
    "peft.adapter_names": "#0072b2",
    "peft.set_adapter": "#56b4e9",
    "ceiling": "white",
}
"""Colours of systems by the start of the name, equal in all plots. The ceiling is no system."""
SERIES = tuple(zip(SERIES_COLOURS, MARKERS, strict=True))
"""Colours and marks of lines that do not stand for a system."""


def draw_all(figures: Figures, folder: Path) -> None:
    fan_out, ragged = "forward.fanout.t8.k3", "forward.ragged.lora32"
    for name, drawing in (
        ("fanout-curve", draw_curves(figures)),
        ("fanout-rivals", draw_bars(figures, fan_out, "One 32-token text, 8 tasks, top 3 of 12")),
        ("ragged-rivals", draw_bars(figures, ragged, "32 texts, 32 LoRA tasks, MiniLM")),
        ("flat", draw_flat(figures)),
        ("race", draw_race(figures)),
    ):
        save_svg(drawing, folder / f"{name}.svg", salt="figures")
        plt.close(drawing)


def save_svg(drawing: Drawing, file: Path, *, salt: str) -> None:
    """Write a plot. Equal figures give equal bytes: no date, no random ids."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        drawing.savefig(file, metadata={"Date": None})


def points(figures: Figures, pattern: str) -> list[tuple[re.Match[str], Figure]]:
    found = ((re.fullmatch(pattern, identifier), it) for identifier, it in figures.items())
    return [(match, figure) for match, figure in found if match is not None]


def lines_of(figures: Figures, pattern: str) -> list[tuple[str, list[int], list[Figure]]]:
    """The lines of a plot by the groups `line` and `place` of a pattern: name, places, figures."""
    lines = defaultdict[str, dict[int, Figure]](dict)
    for match, figure in points(figures, pattern):
        lines[match["line"]][int(match["place"])] = figure
    return [
        (name, sorted(line), [line[it] for it in sorted(line)])
        for name, line in sorted(lines.items())
    ]


def bound(num_tasks: int, top_layers: int) -> float:
    """Speed-up if every layer cost the same: T L / ((L - k) + T k)."""
    shared = NUM_LAYERS - top_layers
    return num_tasks * NUM_LAYERS / (shared + num_tasks * top_layers)


def draw_curves(figures: Figures) -> Drawing:
    """Fan-out: speed-up over the number of tasks, a line for each k, its bound dashed."""
    found = {
        dtype: lines_of(
            figures, rf"forward\.fanout\.curve\.t(?P<place>\d+)\.k(?P<line>\d+)\.{dtype}"
        )
        for dtype in DTYPES
    }
    drawing, grid = plt.subplots(
        1, len(found), figsize=(5.5 * len(found), 5.4), squeeze=False, sharey=True,
        layout="constrained",
    )  # fmt: skip
    drawing.suptitle("Fan-out, BERT base (dashed: bound by layers, times the value at one task)")
    for axes, (dtype, lines) in zip(grid[0], found.items(), strict=True):
        for top_layers, tasks, line in lines:
            draw_curve(axes, int(top_layers), tasks, line)
        over_tasks(axes, "tasks asked of one text")
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_title(dtype)
    grid[0][0].set_ylabel("times faster than dedicated forwards")
    handles, labels = grid[0][0].get_legend_handles_labels()
    drawing.legend(
        handles, labels, loc="outside lower center", ncols=6, title="own layers k", frameon=False
    )
    return drawing


def over_tasks(axes: Axes, label: str) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel(label)


def draw_curve(axes: Axes, top_layers: int, tasks: Sequence[int], line: Sequence[Figure]) -> None:
    """Draw a line with its deciles, and the bound as a dashed line of the same colour.

    At few tasks the ratio shows how much faster one forward is than the rival's. The bound counts
    only layers, so the dashed line is scaled to begin at the first point of the line.
    """
    colour, mark = SERIES[(top_layers - 1) % len(SERIES)]
    draw_line(axes, tasks, line, marker=mark, color=colour, label=str(top_layers), ms=5)
    start = line[0].value / bound(tasks[0], top_layers)
    bounds = [start * bound(it, top_layers) for it in tasks]
    axes.plot(tasks, bounds, ls="--", lw=1, color=colour)


def draw_line(axes: Axes, places: Sequence[int], line: Sequence[Figure], **look: Any) -> None:  # noqa: ANN401 - matplotlib's
    values = [it.value for it in line]
    axes.errorbar(places, values, yerr=decile_distances(line), capsize=2, **look)


def decile_distances(figures: Sequence[Figure]) -> list[list[float]]:
    below = [max(0.0, figure.value - figure.low) for figure in figures]
    above = [max(0.0, figure.high - figure.value) for figure in figures]
    return [below, above]


def draw_bars(figures: Figures, prefix: str, title: str) -> Drawing:
    """Milliseconds of all systems of a race, from fast to slow."""
    found = points(figures, rf"{re.escape(prefix)}\.ms\.(.+)")
    ordered = sorted(found, key=lambda it: -it[1].value)
    names = [match[1] for match, _ in ordered]
    times = [figure for _, figure in ordered]
    drawing, axes = plt.subplots(figsize=(8, 0.36 * len(names) + 1.2), layout="constrained")
    axes.barh(
        names,
        [it.value for it in times],
        xerr=decile_distances(times),
        color=[colour_of(it) for it in names],
        edgecolor=INK,
        linewidth=0.6,
        capsize=2,
    )
    for row, figure in enumerate(times):
        # Spaces in front of a text are not kept in SVG, so the gap is an offset.
        axes.annotate(
            f"{figure.value:.0f}",
            (figure.high, row),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axes.set_xlabel("milliseconds (median, first to last decile)")
    axes.set_title(title)
    axes.margins(x=0.1)
    return drawing


def colour_of(name: str) -> str:
    return next((it for known, it in COLOURS.items() if name.startswith(known)), SPARE)


def draw_flat(figures: Figures) -> Drawing:
    drawing, axes = plt.subplots(figsize=(6.5, 4.8), layout="constrained")
    lines = lines_of(figures, r"forward\.flat\.(?P<line>[a-z0-9.]+)\.n(?P<place>\d+)")
    for (colour, mark), (name, counts, line) in zip(SERIES, lines, strict=False):
        draw_line(axes, counts, line, marker=mark, color=colour, label=name)
    axes.axhline(1.05, ls="--", color=INK, label="goal at 32 tasks: 1.05")
    over_tasks(axes, "different tasks in a batch of 32 texts")
    axes.set_ylabel("times the cost of one task")
    axes.set_title("Cost over the number of tasks, MiniLM")
    drawing.legend(loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return drawing


def draw_race(figures: Figures) -> Drawing:
    """Draw requests per second over the mean macro F1, one point for each way on MiniLM.

    The speed of full models is that of the faster system that holds five with packed layers.
    """
    start = "race.five.minilm"
    full = (f"{start}.{it}.sequential_per_s" for it in ("packed_models", "nunatak_full"))
    ours = points(figures, rf"{re.escape(start)}\.nunatak\.sequential_per_s\.(.+)")
    speeds = {"full": max(figures[it].value for it in full)}
    speeds |= {match[1]: it.value for match, it in ours}
    scores = {
        way: mean(it.value for _, it in points(figures, rf"race\.five\.f1\.\w+\.{way}"))
        for way in speeds
    }
    drawing, axes = plt.subplots(figsize=(6.5, 4.4), layout="constrained")
    for way, per_s in speeds.items():
        system = "transformers" if way == "full" else "nunatak"
        axes.scatter([scores[way]], [per_s], color=COLOURS[system], marker="o", s=70)
        name = "five full models, packed" if way == "full" else f"Nunatak, {WAYS[way]}"
        axes.annotate(name, (scores[way], per_s), xytext=(0, 9), textcoords="offset points",
                      ha="center", fontsize=9)  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.margins(x=0.25, y=0.2)
    axes.set_xlabel("macro F1, mean of five sets")
    axes.set_ylabel("requests/s, five tasks each, one after another")
    axes.set_title("Five classifiers about every text, MiniLM, fp32")
    return drawing
