"""Laws of the arithmetic behind the report."""

import pytest

from benchmarks.savings.page.facts import (
    bytes_at,
    cost_per_million,
    crossover,
    gather,
    goodput,
    headlines,
    tasks_that_fit,
)
from benchmarks.savings.results import SavedCell
from doubles.measured import ORIGIN, OURS, THEIRS, line, race


def test_memory_is_what_was_measured_and_the_line_beyond() -> None:
    measured = line("full_models", *THEIRS, counts=(1, 8))
    noisy = measured.model_copy(
        update={
            "points": (
                measured.points[0],
                measured.points[1].model_copy(update={"pss_bytes": 7}),
            )
        }
    )

    assert bytes_at(noisy, 8) == 7
    assert bytes_at(noisy, 100) == pytest.approx(200e6 + 100 * 101e6)


def test_tasks_that_fit_fill_the_budget_and_no_more() -> None:
    theirs = line("full_models", *THEIRS, counts=(1, 8))

    fitting = tasks_that_fit(theirs, 24e9)

    assert bytes_at(theirs, fitting) <= 24e9 < bytes_at(theirs, fitting + 1)


def test_crossover_is_where_both_lines_meet() -> None:
    ours, theirs = (
        line("nunatak", *OURS, counts=(1, 2)),
        line("full_models", *THEIRS, counts=(1, 2)),
    )

    tasks = crossover(ours, theirs)

    assert tasks == pytest.approx(1.0)
    assert crossover(theirs, ours) is None


def test_goodput_is_the_median_round_from_best_to_worst() -> None:
    assert goodput(race(("slow", (1, 9, 2)), ("nunatak", (5, 4, 6)))) == {"nunatak": 5, "slow": 2}


def test_cost_falls_with_the_rate_and_nothing_has_no_cost() -> None:
    assert cost_per_million(1000, 3.6) == pytest.approx(1.0)
    assert cost_per_million(0, 3.6) is None


def test_first_screen_says_each_result_once() -> None:
    cells = [
        SavedCell(
            origin=ORIGIN,
            backbone="roberta_base",
            num_tasks=tasks,
            num_frozen=frozen,
            formula_share=0.72,
            measured_share=0.71,
            server_bytes=1e9,
            full_models_bytes=4e9,
        )
        for tasks in (2, 8)
        for frozen in (6, 9)
    ]
    results = {
        "a": line("nunatak", *OURS, counts=(1, 100)),
        "b": line("full_models", *THEIRS, counts=(1, 32)),
        "c": race(("nunatak", (30.0,)), ("peft", (20.0,)), ("litserve", (10.0,))),
        **{f"saved{number}": cell for number, cell in enumerate(cells)},
    }

    said = headlines(gather(results, price_per_hour=0.1))

    assert [it.number for it in said] == ["25.8x less memory", "71% saved", "1.50x the throughput"]
    assert "8 full roberta_base models by sharing 9 frozen layers" in said[1].text
    assert "peft" in said[2].text


def test_baseline_alone_makes_no_claim() -> None:
    results = {"b": line("full_models", *THEIRS, counts=(1, 32)), "c": race(("peft", (20.0,)))}

    assert headlines(gather(results, price_per_hour=0.1)) == []
