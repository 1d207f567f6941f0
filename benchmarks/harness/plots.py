"""Plots of the figures, as SVG files for docs/results.

Each plot shows only the newest figures. A plot without figures is left out.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

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
WAYS = {
    "full": "full fine-tune",
    "top-3": "three top layers",
    "lora-middle": "LoRA from the middle",
    "head": "head alone",
    "shared": "shared, chosen",
}
"""Ways to train the tasks of the race of five."""
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


def draw_all(figures: Figures, folder: Path) -> list[str]:
    """Write every plot that has figures; returns the names of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = drawings(figures)
    for name, drawing in drawn.items():
        save_svg(drawing, folder / name, salt="figures")
        plt.close(drawing)
    return list(drawn)


def save_svg(drawing: Drawing, file: Path, *, salt: str) -> None:
    """Write a plot. Equal figures give equal bytes: no date, no random ids."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        drawing.savefig(file, metadata={"Date": None})


def drawings(figures: Figures) -> dict[str, Drawing]:
    """Every plot that has figures, by the name of its file."""
    fan_out, ragged = "forward.fanout.t8.k3", "forward.ragged.lora32"
    drawn = {
        "fanout-curve.svg": draw_curves(figures),
        "fanout-rivals.svg": draw_bars(figures, fan_out, "One 32-token text, 8 tasks, top 3 of 12"),
        "ragged-rivals.svg": draw_bars(figures, ragged, "32 texts, 32 LoRA tasks, MiniLM"),
        "flat.svg": draw_flat(figures),
        "race.svg": draw_race(figures),
    }
    return {name: drawing for name, drawing in drawn.items() if drawing is not None}


def points(figures: Figures, pattern: str) -> dict[tuple[str, ...], Figure]:
    """The figures whose whole identifier matches, by the groups of the match."""
    found = {re.fullmatch(pattern, identifier): it for identifier, it in figures.items()}
    return {match.groups(): figure for match, figure in found.items() if match is not None}


def bound(num_tasks: int, top_layers: int) -> float:
    """Speed-up if every layer cost the same: T L / ((L - k) + T k)."""
    shared = NUM_LAYERS - top_layers
    return num_tasks * NUM_LAYERS / (shared + num_tasks * top_layers)


def draw_curves(figures: Figures) -> Drawing | None:
    """Fan-out: speed-up over the number of tasks, a line for each k, its bound dashed."""
    found = {
        dtype: points(figures, rf"forward\.fanout\.curve\.t(\d+)\.k(\d+)\.{dtype}")
        for dtype in DTYPES
    }
    found = {dtype: curve for dtype, curve in found.items() if curve}
    if not found:
        return None
    size = 5.5 * len(found), 5.4
    drawing, grid = plt.subplots(
        1, len(found), figsize=size, squeeze=False, sharey=True, layout="constrained"
    )
    drawing.suptitle("Fan-out, BERT base (dashed: bound by layers, times the value at one task)")
    for axes, (dtype, curve) in zip(grid[0], found.items(), strict=True):
        lines = defaultdict[int, list[tuple[int, Figure]]](list)
        for (num_tasks, top_layers), figure in curve.items():
            lines[int(top_layers)].append((int(num_tasks), figure))
        for top_layers, line in sorted(lines.items()):
            draw_curve(axes, top_layers, sorted(line, key=lambda point: point[0]))
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("tasks asked of one text")
        axes.set_title(dtype)
    grid[0][0].set_ylabel("times faster than dedicated forwards")
    handles, labels = grid[0][0].get_legend_handles_labels()
    drawing.legend(
        handles, labels, loc="outside lower center", ncols=6, title="own layers k", frameon=False
    )
    return drawing


def draw_curve(axes: Axes, top_layers: int, line: Sequence[tuple[int, Figure]]) -> None:
    """Draw a line with its deciles, and the bound as a dashed line of the same colour.

    At few tasks the ratio shows how much faster one forward is than the rival's. The bound counts
    only layers, so the dashed line is scaled to begin at the first point of the line.
    """
    tasks = [num_tasks for num_tasks, _ in line]
    colour, mark = SERIES[(top_layers - 1) % len(SERIES)]
    errors = decile_distances([figure for _, figure in line])
    values = [figure.value for _, figure in line]
    axes.errorbar(
        tasks,
        values,
        yerr=errors,
        marker=mark,
        ms=5,
        capsize=2,
        color=colour,
        label=str(top_layers),
    )
    start = values[0] / bound(tasks[0], top_layers)
    bounds = [start * bound(it, top_layers) for it in tasks]
    axes.plot(tasks, bounds, ls="--", lw=1, color=colour)


def decile_distances(figures: Sequence[Figure]) -> list[list[float]]:
    """Return the distances of the first and of the last decile from the median."""
    below = [max(0.0, figure.value - figure.low) for figure in figures]
    above = [max(0.0, figure.high - figure.value) for figure in figures]
    return [below, above]


def draw_bars(figures: Figures, prefix: str, title: str) -> Drawing | None:
    """Milliseconds of all systems of a race, from fast to slow."""
    found = points(figures, rf"{re.escape(prefix)}\.ms\.(.+)")
    if not found:
        return None
    ordered = sorted(found.items(), key=lambda it: -it[1].value)
    names = [name for (name,), _ in ordered]
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
    """The colour of a system, by how its name begins."""
    return next((it for known, it in COLOURS.items() if name.startswith(known)), SPARE)


def draw_flat(figures: Figures) -> Drawing | None:
    """Cost of a batch over the number of its tasks."""
    found = points(figures, r"forward\.flat\.([a-z0-9.]+)\.n(\d+)")
    if not found:
        return None
    lines = defaultdict[str, list[tuple[int, Figure]]](list)
    for (name, count), figure in found.items():
        lines[name].append((int(count), figure))
    drawing, axes = plt.subplots(figsize=(6.5, 4.8), layout="constrained")
    for (colour, mark), (name, line) in zip(SERIES, sorted(lines.items()), strict=False):
        ordered = sorted(line, key=lambda point: point[0])
        axes.errorbar(
            [count for count, _ in ordered],
            [figure.value for _, figure in ordered],
            yerr=decile_distances([figure for _, figure in ordered]),
            marker=mark,
            color=colour,
            capsize=2,
            label=name,
        )
    axes.axhline(1.05, ls="--", color=INK, label="goal at 32 tasks: 1.05")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("different tasks in a batch of 32 texts")
    axes.set_ylabel("times the cost of one task")
    axes.set_title("Cost over the number of tasks, MiniLM")
    drawing.legend(loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return drawing


def f1_scores(figures: Figures) -> dict[str, dict[str, float]]:
    """Return the test score of each way, by set."""
    scores = dict[str, dict[str, float]]()
    for (name, way), figure in points(figures, r"race\.five\.f1\.([a-z0-9_]+)\.(.+)").items():
        scores.setdefault(name, {})[way] = figure.value
    return scores


def mean_f1(figures: Figures) -> dict[str, float]:
    """Return the mean of the sets, by way; empty without figures."""
    scores = f1_scores(figures)
    return {way: mean(of_set[way] for of_set in scores.values()) for way in WAYS if scores}


def speeds(figures: Figures) -> dict[str, float | None]:
    """Return the requests per second on MiniLM of five tasks of each way.

    The speed of full models is that of the faster system that holds five with packed layers.
    """
    found = {name: it.value for name, it in figures.items()}
    start = "race.five.minilm"
    full = [
        found.get(f"{start}.{system}.sequential_per_s", 0.0)
        for system in ("packed_models", "nunatak_full")
    ]
    ours = {
        way: found.get(f"{start}.nunatak.sequential_per_s.{way}")
        for way in ("top-3", "lora-middle", "head")
    }
    return {"full": max(full) or None, **ours}


def draw_race(figures: Figures) -> Drawing | None:
    """Draw requests per second over macro F1, one point for each way on MiniLM."""
    scores = mean_f1(figures)
    found = {way: it for way, it in speeds(figures).items() if it is not None and way in scores}
    if not found:
        return None
    drawing, axes = plt.subplots(figsize=(6.5, 4.4), layout="constrained")
    for way, per_s in found.items():
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
