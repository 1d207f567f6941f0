"""What the plots of training have in common: colours, legends and whole epochs."""

# matplotlib leaves the keyword arguments of its methods untyped.
# pyright: reportUnknownMemberType=false

from collections.abc import Iterable, Sequence
from itertools import cycle
from types import MappingProxyType

from cycler import cycler
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLOURS = (
    *("#009e73", "#d55e00", "#0072b2", "#cc79a7", "#e69f00"),
    *("#56b4e9", "#7b4fb5", "#8a6d3b", "#8a8f96"),
)
"""Those of Okabe and Ito but black and yellow, and more for long sweeps."""
MARKERS = "os^vDPXd*"
LOOKS = cycler(color=COLOURS) + cycler(marker=MARKERS)
"""Lines are told apart by colour, and by their marks with any colour vision."""
COLOURS_OF_METHODS = MappingProxyType(
    {
        "full": "#d55e00",
        "bottleneck 64": "#0072b2",
        "bottleneck 256": "#56b4e9",
        "lora 8": "#009e73",
        "head": "#8a8f96",
    }
)
"""In every plot that tells methods apart."""
LETTER, HANDLE = 0.075, 0.6
"""Inches of a letter and of a line with its gaps, in a legend."""
LEGEND_SIZE = 8


def colours_of(names: Sequence[str]) -> list[str]:
    """A colour for each of some settings: that of its method where no other has the same."""
    methods = [
        next((part for part in name.split(", ") if part in COLOURS_OF_METHODS), None)
        for name in names
    ]
    known = {it for it in methods if it is not None and methods.count(it) == 1}
    taken = {COLOURS_OF_METHODS[it] for it in known}
    spare = cycle(it for it in COLOURS if it not in taken)
    return [COLOURS_OF_METHODS[it] if it in known else next(spare) for it in methods]


def legend_below(drawing: Figure, panels: Iterable[Axes]) -> None:
    """Name what all panels show once, below them, in as many columns as there is room for."""
    found = dict[str, Artist]()
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    if not found:
        return
    width = drawing.get_figwidth() / (HANDLE + LETTER * max(map(len, found)))
    drawing.legend(
        list(found.values()),
        list(found),
        loc="outside lower center",
        ncols=max(1, min(len(found), int(width))),
        fontsize=LEGEND_SIZE,
        frameon=False,
    )


def whole_numbers(axes: Axes) -> None:
    """There is no epoch, layer or step between two of them."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def draw_lines(
    points: Sequence[tuple[str, float, float]], *, across: str, up: str
) -> tuple[Figure, Axes]:
    """A line through the points of each name, given as name, place and value."""
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
