"""What a reader of a plot would see: its texts with their places, once it is drawn."""

# matplotlib leaves the keyword arguments of its methods untyped.
# pyright: reportUnknownMemberType=false

from collections.abc import Iterator
from itertools import pairwise

from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

SLACK = 1.0
"""Pixels."""


def clipped(figure: Figure) -> list[str]:
    """Texts that do not lie inside the figure as a whole."""
    FigureCanvasAgg(figure).draw()
    width, height = figure.bbox.width, figure.bbox.height
    boxes = [
        (text.get_text(), text.get_window_extent()) for text in texts(figure) if text.get_text()
    ]
    return [
        text
        for text, box in boxes
        if min(box.x0, box.y0) < -SLACK or box.x1 > width + SLACK or box.y1 > height + SLACK
    ]


def colliding(figure: Figure) -> list[tuple[str, str]]:
    """Neighbours among the labels of an axis that overlap."""
    FigureCanvasAgg(figure).draw()
    return [
        (left.get_text(), right.get_text())
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for left, right in pairwise(tick_labels(axis))
        if left.get_window_extent().overlaps(right.get_window_extent())
    ]


def covered_by_legends(figure: Figure) -> bool:
    """Whether a legend lies over what is drawn."""
    FigureCanvasAgg(figure).draw()
    legends = [*figure.legends, *(it for it in (a.get_legend() for a in figure.axes) if it)]
    return any(
        legend.get_window_extent().overlaps(axes.get_window_extent())
        for legend in legends
        for axes in figure.axes
    )


def texts(figure: Figure) -> Iterator[Text]:
    """Everything to read in it."""
    yield from figure.texts
    for legend in figure.legends:
        yield from legend.get_texts()
    for axes in figure.axes:
        yield from (axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts)
        for axis in (axes.xaxis, axes.yaxis):
            yield from tick_labels(axis)


def tick_labels(axis: Axis) -> list[Text]:
    """The labels inside its limits, in their order."""
    low, high = sorted(axis.get_view_interval())
    ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    ordered = sorted(ticks, key=lambda tick: tick.get_loc())
    return [tick.label1 for tick in ordered if tick.label1.get_visible()]


def colours_of_lines(figure: Figure) -> dict[str, str]:
    """The colour of each line with a name of its own."""
    named = (line for axes in figure.axes for line in axes.get_lines())
    return {
        str(line.get_label()): to_hex(line.get_color())
        for line in named
        if not str(line.get_label()).startswith("_")
    }
