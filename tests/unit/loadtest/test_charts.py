"""Laws of the report's plots: a reader can read them."""

from collections.abc import Iterator

import pytest
from matplotlib.figure import Figure

from doubles.legibility import (
    clipped,
    colliding,
    colours_of_lines,
    covered_by_legends,
    texts,
    tick_labels,
)
from doubles.measured import OURS, THEIRS, line, race
from nunatak_loadtest.page.canvas import blank, milliseconds, styled
from nunatak_loadtest.page.charts import draw_all
from nunatak_loadtest.page.facts import Facts, gather
from nunatak_loadtest.page.palette import looks_of
from nunatak_loadtest.results import AnyResult

LONG = "Sixteen tasks, one per text of ragged length, independent arrivals, and a little more"
SYSTEMS = ("nunatak", "full_models", "peft_mixed", "peft_switch", "litserve", "ray_serve")


@pytest.fixture(name="facts")
def gather_facts() -> Facts:
    raced = race(*((name, (0.6,)) for name in SYSTEMS)).model_copy(update={"title": LONG})
    # As many answers as a slow system gives, spread over the times that made labels collide.
    times = [tuple(25.0 * 1.035 ** (it // 3) + it // 3 for it in range(103)) for _ in SYSTEMS]
    racers = tuple(
        racer.model_copy(update={"quantiles_ms": its})
        for racer, its in zip(raced.racers, times, strict=True)
    )
    results: dict[str, AnyResult] = {
        "a": line("nunatak", *OURS, counts=(1, 300)),
        "b": line("full_models", *THEIRS, counts=(1, 32)),
        "c": raced.model_copy(update={"racers": racers}),
    }
    return gather(results, price_per_hour=0.1)


@pytest.fixture(name="drawn")
def draw(facts: Facts) -> Iterator[dict[str, Figure]]:
    with styled():
        yield draw_all(facts)


def test_no_text_is_clipped_no_label_collides_and_no_legend_covers_a_curve(
    drawn: dict[str, Figure],
) -> None:
    assert len(drawn) == 4
    for name, figure in drawn.items():
        assert clipped(figure) == [], name
        assert colliding(figure) == [], name
        assert not covered_by_legends(figure), name


def test_a_system_has_the_same_colour_in_every_plot(drawn: dict[str, Figure]) -> None:
    found = [
        colours_of_lines(drawn[name])
        for name in ("memory-minilm", "latency-over-load-single", "cdf-single")
    ]

    for system in ("nunatak", "full_models"):
        assert len({colours[system] for colours in found}) == 1
    assert len({found[1][system] for system in SYSTEMS}) == len(SYSTEMS)


def test_systems_that_nobody_knows_get_looks_of_their_own() -> None:
    looks = looks_of(["nunatak", "mine", "yours", "full_models"])

    assert len({look.colour for look in looks}) == 4


def test_milliseconds_are_plain_numbers_around_what_is_drawn() -> None:
    figure, axes = blank(6, 4, "")
    milliseconds(axes.xaxis, 24, 1800)

    assert clipped(figure) == []
    labels = [label.get_text() for label in tick_labels(axes.xaxis)]
    assert labels == ["20", "50", "100", "200", "500", "1,000", "2,000"]


def test_small_rates_keep_the_digits_that_tell_them_apart(drawn: dict[str, Figure]) -> None:
    shown = [text.get_text() for text in texts(drawn["throughput-single"])]

    assert shown.count("0.6") >= len(SYSTEMS)
