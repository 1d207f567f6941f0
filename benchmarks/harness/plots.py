"""Plots of the figures of the forward and the server, as SVG files for docs/results.

Each plot shows only the newest figures. A plot without figures is left out.
"""
# pyright: reportUnknownMemberType=false
# matplotlib leaves the keyword arguments of its methods untyped.

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from benchmarks.harness.palette import LOOKS, SERIES, Look
from benchmarks.harness.recording import Figure

Figures = Mapping[str, Figure]
NUM_LAYERS = 12
"""Layers of the fan-out's backbone, which has the shape of BERT base."""
DTYPES = ("fp32", "bf16")
ROOM = 16
"""Number of tasks that fit in memory, in the measurement of more tasks than fit."""
LAWS = {"uniform": "all asked alike", "zipf": "by Zipf's law"}
INK, SPARE = "black", "#8a8f96"
COLOURS = {
    "nunatak": LOOKS["nunatak"].colour,
    "transformers": LOOKS["full_models"].colour,
    "peft.adapter_names": LOOKS["peft_mixed"].colour,
    "peft.set_adapter": LOOKS["peft_switch"].colour,
    "ceiling": "white",
}
"""Colours of systems by the start of the name, equal in all plots. The ceiling is no system."""
# Equal figures give equal bytes: no date, no random ids.
mpl.rcParams |= {"svg.hashsalt": "figures", "svg.fonttype": "none"}


def draw_all(figures: Figures, folder: Path) -> list[str]:
    """Write every plot that has figures; returns the names of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = drawings(figures)
    for name, drawing in drawn.items():
        drawing.savefig(folder / name, metadata={"Date": None})
        plt.close(drawing)
    return list(drawn)


def drawings(figures: Figures) -> dict[str, Drawing]:
    """Every plot that has figures, by the name of its file."""
    fan_out, ragged = "forward.fanout.t8.k3", "forward.ragged.lora32"
    drawn = {
        "fanout-curve.svg": draw_curves(figures),
        "fanout-rivals.svg": draw_bars(figures, fan_out, "One 32-token text, 8 tasks, top 3 of 12"),
        "ragged-rivals.svg": draw_bars(figures, ragged, "32 texts, 32 LoRA tasks, MiniLM"),
        "flat.svg": draw_flat(figures),
        "activations.svg": draw_activations(figures),
        "cliff.svg": draw_cliff(figures),
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
    look = SERIES[(top_layers - 1) % len(SERIES)]
    errors = decile_distances([figure for _, figure in line])
    values = [figure.value for _, figure in line]
    axes.errorbar(
        tasks,
        values,
        yerr=errors,
        marker=look.marker,
        ms=5,
        capsize=2,
        color=look.colour,
        label=str(top_layers),
    )
    start = values[0] / bound(tasks[0], top_layers)
    bounds = [start * bound(it, top_layers) for it in tasks]
    axes.plot(tasks, bounds, ls="--", lw=1, color=look.colour)


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


def draw_line(
    axes: Axes, line: Sequence[tuple[int, Figure]], look: Look, *, label: str, dashes: str = "-"
) -> None:
    """Draw figures over a count, with the deciles of each figure."""
    ordered = sorted(line, key=lambda point: point[0])
    axes.errorbar(
        [count for count, _ in ordered],
        [figure.value for _, figure in ordered],
        yerr=decile_distances([figure for _, figure in ordered]),
        marker=look.marker,
        color=look.colour,
        ls=dashes,
        capsize=2,
        label=label,
    )


def draw_flat(figures: Figures) -> Drawing | None:
    """Cost of a batch over the number of its tasks."""
    found = points(figures, r"forward\.flat\.([a-z0-9.]+)\.n(\d+)")
    if not found:
        return None
    lines = defaultdict[str, list[tuple[int, Figure]]](list)
    for (name, count), figure in found.items():
        lines[name].append((int(count), figure))
    drawing, axes = plt.subplots(figsize=(6.5, 4.8), layout="constrained")
    for look, (name, line) in zip(SERIES, sorted(lines.items()), strict=False):
        draw_line(axes, line, look, label=name)
    axes.axhline(1.05, ls="--", color=INK, label="goal at 32 tasks: 1.05")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("different tasks in a batch of 32 texts")
    axes.set_ylabel("times the cost of one task")
    axes.set_title("Cost over the number of tasks, MiniLM")
    drawing.legend(loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return drawing


def draw_activations(figures: Figures) -> Drawing | None:
    """Draw the peak memory of a forward over its tokens, for short and long rows.

    Each further line is thinner and has smaller marks, so lines that coincide remain visible.
    """
    found = points(figures, r"forward\.activations\.len(\d+)\.t(\d+)")
    if not found:
        return None
    lines = defaultdict[int, list[tuple[int, float]]](list)
    for (length, tokens), figure in found.items():
        lines[int(length)].append((int(tokens), figure.value))
    drawing, axes = plt.subplots(figsize=(6.5, 4.4), layout="constrained")
    for place, (length, line) in enumerate(sorted(lines.items())):
        look, left = SERIES[place % len(SERIES)], len(lines) - place
        ordered = sorted(line)
        axes.plot(
            [tokens for tokens, _ in ordered],
            [peak for _, peak in ordered],
            marker=look.marker,
            ms=2 + 4 * left,
            lw=3 * left - 1.5,
            color=look.colour,
            label=f"rows of {length} tokens",
        )
    is_one = len({tuple(sorted(line)) for line in lines.values()}) == 1 < len(lines)
    note = " (the lines coincide)" if is_one else ""
    axes.set_xlabel("tokens of the batch")
    axes.set_ylabel("peak of activations, MiB")
    axes.set_title(f"Activation memory over the token budget, MiniLM, fp32{note}", fontsize=11)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    drawing.legend(loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return drawing


def draw_cliff(figures: Figures) -> Drawing | None:
    """Draw the wait of callers while requests name more tasks than fit in memory."""
    found = points(figures, r"server\.cliff\.(uniform|zipf)\.a(\d+)\.(p50|p99)_ms")
    if not found:
        return None
    lines = defaultdict[tuple[str, str], list[tuple[int, Figure]]](list)
    for (law, count, part), figure in found.items():
        lines[part, law].append((int(count), figure))
    drawing, axes = plt.subplots(figsize=(6.5, 4.4), layout="constrained")
    for look, ((part, law), line) in zip(SERIES, sorted(lines.items()), strict=False):
        dashes = "-" if part == "p99" else ":"
        draw_line(axes, line, look, label=f"{part}, {LAWS[law]}", dashes=dashes)
    axes.axvline(ROOM, ls="--", color=SPARE, label=f"room for {ROOM} tasks")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tasks that are asked")
    axes.set_ylabel("milliseconds until the answer")
    axes.set_title("More tasks than fit in memory, MiniLM, two cores")
    drawing.legend(loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return drawing
