"""Shared parts of the analyses' plots: a colour for each method, and lines."""

from collections.abc import Sequence
from itertools import cycle
from types import MappingProxyType

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nunatak_training.sweeps.reporting import COLOURS, LOOKS, legend_below

COLOURS_OF_METHODS = MappingProxyType(
    {
        "full": "#d55e00",
        "bottleneck 64": "#0072b2",
        "bottleneck 256": "#56b4e9",
        "lora 8": "#009e73",
        "head": "#8a8f96",
    }
)
"""The colours of methods, the same in every plot."""


def colours_of(names: Sequence[str]) -> list[str]:
    """Return a colour per setting: its method's colour, if no other setting has that method."""
    methods = [
        next((part for part in name.split(", ") if part in COLOURS_OF_METHODS), None)
        for name in names
    ]
    known = {it for it in methods if it is not None and methods.count(it) == 1}
    taken = {COLOURS_OF_METHODS[it] for it in known}
    spare = cycle(it for it in COLOURS if it not in taken)
    return [COLOURS_OF_METHODS[it] if it in known else next(spare) for it in methods]


def draw_lines(
    points: Sequence[tuple[str, float, float]], *, across: str, up: str
) -> tuple[Figure, Axes]:
    """Draw a line for each name; a point has a name, a position and a value."""
    drawing = Figure(figsize=(7, 5), layout="constrained")
    axes = drawing.subplots()
    axes.set_prop_cycle(LOOKS)
    names = list(dict.fromkeys(name for name, _, _ in points))
    for name, colour in zip(names, colours_of(names), strict=True):
        line = [(place, value) for it, place, value in points if it == name]
        places, values = [place for place, _ in line], [value for _, value in line]
        axes.plot(places, values, ms=5, color=colour, label=name)
    axes.set(xlabel=across, ylabel=up)
    legend_below(drawing, [axes])
    return drawing, axes
