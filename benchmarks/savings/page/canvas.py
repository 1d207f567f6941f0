"""Shared parts of the report's plots: ink, axes, titles, legends and scales.

In files, the background is white and the ink dark. In the page, the background is transparent and
the ink follows the theme of the reader. All other colours are legible on white and on black.
"""
# pyright: reportUnknownMemberType=false
# matplotlib leaves the keyword arguments of its methods untyped.

import math
import textwrap
from collections.abc import Generator
from contextlib import contextmanager

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

INK = "#3d444d"
STEPS = (1, 2, 5)
"""Ticks of a scale of milliseconds, as multiples of each power of ten."""
LETTERS_PER_INCH = 11
"""Letters of a title per inch, at the font size of titles."""


@contextmanager
def styled() -> Generator[None]:
    """Use the settings of the report in this block, and restore matplotlib's settings after it."""
    with mpl.rc_context():
        mpl.rcParams |= {
            "svg.fonttype": "none",
            "svg.hashsalt": "report",
            "text.color": INK,
            "axes.edgecolor": INK,
            "axes.labelcolor": INK,
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "xtick.color": INK,
            "ytick.color": INK,
            "legend.frameon": False,
            "legend.fontsize": 9,
            "figure.titlesize": 11,
        }
        yield


def blank(width: float, height: float, title: str) -> tuple[Figure, Axes]:
    """Return an empty plot with a wrapped title; the sizes are in inches."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    figure.suptitle(textwrap.fill(title, int(width * LETTERS_PER_INCH)))
    axes = figure.subplots()
    axes.set_facecolor("none")
    axes.grid(visible=True, color=INK, alpha=0.18, lw=0.6)
    return figure, axes


def legend_below(figure: Figure, columns: int = 2) -> None:
    """Put the legend below the plot, so that no line crosses the legend."""
    figure.legend(loc="outside lower center", ncols=columns)


def milliseconds(axis: XAxis | YAxis, low: float, high: float) -> None:
    """Set a logarithmic scale, from a round number below `low` to a round number above `high`."""
    limits = _round_below(low), _round_above(high)
    if isinstance(axis, XAxis):
        axis.axes.set_xscale("log")
        axis.axes.set_xlim(*limits)
    else:
        axis.axes.set_yscale("log")
        axis.axes.set_ylim(*limits)
    axis.set_major_locator(LogLocator(subs=STEPS))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:,g}")


def _round_below(value: float) -> float:
    power = 10 ** math.floor(math.log10(value))
    return max(step * power for step in STEPS if step * power <= value)


def _round_above(value: float) -> float:
    power = 10 ** math.floor(math.log10(value))
    return min(step * power for step in (*STEPS, 10) if step * power > value)
