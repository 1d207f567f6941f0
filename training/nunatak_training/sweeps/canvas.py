"""Shared parts of training's plots: colours, legends and whole epochs."""

# matplotlib leaves the keyword arguments of its methods untyped.
# pyright: reportUnknownMemberType=false

from collections.abc import Iterable

from cycler import cycler
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLOURS = (
    *("#009e73", "#d55e00", "#0072b2", "#cc79a7", "#e69f00"),
    *("#56b4e9", "#7b4fb5", "#8a6d3b", "#8a8f96"),
)
"""Okabe and Ito's colours without black and yellow, and more for long sweeps."""
MARKERS = "os^vDPXd*"
LOOKS = cycler(color=COLOURS) + cycler(marker=MARKERS)
"""Colours tell lines apart; marks do so for any colour vision."""
LETTER, HANDLE = 0.075, 0.6
"""Inches of a letter and of a line with its gaps, in a legend."""
LEGEND_SIZE = 8


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
    """Put ticks at whole numbers only, for axes of epochs, layers or steps."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
