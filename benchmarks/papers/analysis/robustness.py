"""The dependence of the score on the learning rate and the seed.

He et al. 2021 (arXiv:2106.03164), sec. 5 and figure 4: box plots over seeds at each learning rate.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from benchmarks.papers.analysis.findings import Findings, finished_cells
from benchmarks.papers.analysis.lines import colours_of
from nunatak_training.sweeps.reporting import AXES, Cell, legend_below, panels_by_task
from nunatak_training.sweeps.results import RunRecord

METHOD = tuple(AXES).index("method")


def box(scores: Sequence[float]) -> tuple[float, ...]:
    """Return minimum, quartiles (linear between neighbours) and maximum, as a box plot has them."""
    return tuple(np.quantile(scores, [0, 0.25, 0.5, 0.75, 1]).tolist())


def analyze_robustness(records: Sequence[RunRecord]) -> Findings:
    """Draw boxes over seeds for each method at each learning rate, one panel per task.

    Raises:
        NunatakError: `invalid_sweep`, no run finished.
    """
    cells = finished_cells(records)
    cells.sort(key=lambda cell: (cell.axes[METHOD], cell.runs[0].recipe.learning_rate))
    drawing, panels = panels_by_task(cells)
    for axes, (task, members) in panels:
        draw_boxes(axes, members)
        axes.set(title=task, xlabel="learning rate", ylabel=members[0].outcomes[0].metric)
    legend_below(drawing, [axes for axes, _ in panels])
    return Findings(
        name="robustness",
        header=(*AXES, "min", "first quartile", "median", "third quartile", "max", "seeds"),
        rows=tuple((*cell.axes, *box(cell.scores), len(cell.scores)) for cell in cells),
        drawing=drawing,
    )


def draw_boxes(axes: Axes, cells: Sequence[Cell]) -> None:
    """Draw the boxes of all methods next to one another at each learning rate, in their colours."""
    methods = list(dict.fromkeys(cell.axes[METHOD] for cell in cells))
    rates = sorted({cell.runs[0].recipe.learning_rate for cell in cells})
    width = 0.8 / len(methods)
    for place, (method, colour) in enumerate(zip(methods, colours_of(methods), strict=True)):
        its = [cell for cell in cells if cell.axes[METHOD] == method]
        axes.boxplot(
            [list(cell.scores) for cell in its],
            positions=[
                rates.index(cell.runs[0].recipe.learning_rate) + (place + 0.5) * width - 0.4
                for cell in its
            ],
            widths=0.8 * width,
            whis=(0, 100),
            patch_artist=True,
            boxprops={"facecolor": colour},
            medianprops={"color": "black"},
            label=method,
        )
    axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
