"""Shared parts of the report's plots: ink, axes, titles, legends and scales.

Files have a white ground and dark ink. In the page the ink follows the reader's theme and the
ground is transparent, so every other colour is legible on white and on black.
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
"""Ticks of a scale of milliseconds, in each power of ten."""
LETTERS_PER_INCH = 11
"""Letters of a title per inch, at its size."""


@contextmanager
def styled() -> Generator[None]:
    """Draw and write within this, and matplotlib's settings are as before afterwards."""
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
    """An empty plot of so many inches, its title in as many lines as it takes."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    figure.suptitle(textwrap.fill(title, int(width * LETTERS_PER_INCH)))
    axes = figure.subplots()
    axes.set_facecolor("none")
    axes.grid(visible=True, color=INK, alpha=0.18, lw=0.6)
    return figure, axes


def legend_below(figure: Figure, columns: int = 2) -> None:
    """Name the lines below the plot, where they run through no name."""
    figure.legend(loc="outside lower center", ncols=columns)


def milliseconds(axis: XAxis | YAxis, low: float, high: float) -> None:
    """A logarithmic scale between round numbers around these, labelled in plain ones."""
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
