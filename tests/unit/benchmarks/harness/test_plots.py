from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot as plt

from benchmarks.harness.plots import bound, draw_all, drawings
from benchmarks.harness.recording import Figure, latest, record
from benchmarks.render_figures import overview, write


@pytest.fixture
def figures(tmp_path: Path) -> dict[str, Figure]:
    file = tmp_path / "figures.jsonl"
    for name in ("fanout.curve.t8.k3.fp32", "fanout.t8.k3.ms.nunatak.fp32", "flat.lora.n4"):
        record(f"forward.{name}", [1.0, 2.0], unit="of", command="c", file=file)
    record("forward.flat.lora", [1.0, 2.0], unit="of", command="c", goal="<= 1.05", file=file)
    return latest(file)


@pytest.mark.parametrize(
    ("num_tasks", "top_layers", "times"), [(1, 3, 1.0), (8, 3, 96 / 33), (64, 12, 1.0)]
)
def test_the_bound_counts_layers(num_tasks: int, top_layers: int, times: float) -> None:
    assert bound(num_tasks, top_layers) == pytest.approx(times)


def test_a_plot_without_figures_is_left_out(figures: dict[str, Figure], tmp_path: Path) -> None:
    drawn = draw_all(figures, tmp_path / "plots")

    assert drawn == ["fanout-curve.svg", "fanout-rivals.svg", "flat.svg"]
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == drawn


def test_equal_figures_give_equal_plots(figures: dict[str, Figure], tmp_path: Path) -> None:
    for folder in ("one", "two"):
        draw_all(figures, tmp_path / folder)

    for plot in (tmp_path / "one").iterdir():
        assert plot.read_bytes() == (tmp_path / "two" / plot.name).read_bytes()


def test_the_bound_of_a_curve_begins_where_the_curve_does(tmp_path: Path) -> None:
    file = tmp_path / "figures.jsonl"
    for tasks, value in ((1, 2.0), (8, 5.0)):
        name = f"forward.fanout.curve.t{tasks}.k3.fp32"
        record(name, [value], unit="of", command="c", file=file)

    drawing = drawings(latest(file))["fanout-curve.svg"]

    dashed = [it for it in drawing.axes[0].get_lines() if it.get_linestyle() == "--"]
    assert [np.asarray(it.get_ydata()).tolist() for it in dashed] == [
        [2.0, pytest.approx(2 * bound(8, 3))]
    ]
    plt.close(drawing)


def test_the_page_has_a_line_for_figures_and_none_for_points_of_plots(
    figures: dict[str, Figure], tmp_path: Path
) -> None:
    write(figures, tmp_path)

    text = (tmp_path / "forward.md").read_text()
    assert "| `forward.flat.lora` | 1.5 of |" in text
    assert "](plots/flat.svg)" in text
    assert "`forward.flat.lora.n4`" not in text
    assert "`forward.fanout.curve" not in text
    assert "| `forward.flat.lora` | 1.5 | of |" in (tmp_path / "README.md").read_text()


def test_a_figure_of_no_section_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "figures.jsonl"
    record("lost.figure", [1.0], unit="of", command="c", file=file)

    with pytest.raises(ValueError, match=r"lost\.figure"):
        overview(latest(file))
