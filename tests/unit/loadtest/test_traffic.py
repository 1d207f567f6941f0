"""Laws of the requests and their times."""

from collections import Counter
from itertools import pairwise
from statistics import mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nunatak_loadtest import Scenario
from nunatak_loadtest.report import top_shares
from nunatak_loadtest.scenario import Arrivals, Closed, Gamma, Poisson, Uniform, Width, Zipf
from nunatak_loadtest.traffic import Requests, arrival_times, plan, task_weights

TASKS = tuple(f"task{number}" for number in range(16))


@pytest.mark.parametrize(
    ("arrivals", "cv"),
    [
        pytest.param(Poisson(rate_per_s=50), 1.0, id="poisson"),
        pytest.param(Gamma(rate_per_s=50, cv=4), 4.0, id="gamma"),
        pytest.param(Gamma(rate_per_s=50, cv=0.25), 0.25, id="steady"),
    ],
)
def test_gaps_have_their_mean_and_coefficient_of_variation(arrivals: Arrivals, cv: float) -> None:
    times = list(arrival_times(arrivals, seconds=400, seed=1))
    gaps = [after - before for before, after in pairwise(times)]

    assert abs(mean(gaps) * 50 - 1) < 0.1
    assert abs(stdev(gaps) / mean(gaps) / cv - 1) < 0.1


def test_arrivals_rise_within_their_time_and_closed_loops_have_none() -> None:
    times = list(arrival_times(Poisson(rate_per_s=100), seconds=5, seed=0))

    assert times == sorted(times)
    assert times[0] > 0
    assert times[-1] < 5
    assert not list(arrival_times(Closed(), seconds=5, seed=0))


def test_plan_is_a_function_of_its_seed() -> None:
    scenario = Scenario(name="x", arrivals=Poisson(rate_per_s=100))

    first = plan(scenario, TASKS, seed=1, seconds=2)

    assert first == plan(scenario, TASKS, seed=1, seconds=2)
    assert first != plan(scenario, TASKS, seed=2, seconds=2)


# Shares of the top task and of the top tenth of 200 tasks, for the settings of S-LoRA and Punica.
@pytest.mark.parametrize(
    ("exponent", "top", "tenth"), [(0.8, 0.10, 0.47), (1.0, 0.17, 0.61), (1.2, 0.26, 0.74)]
)
def test_zipf_has_the_published_shares(exponent: float, top: float, tenth: float) -> None:
    shares = top_shares(task_weights(Zipf(exponent=exponent), 200))

    assert shares == pytest.approx((top, tenth), abs=0.01)


@given(num_tasks=st.integers(1, 300), exponent=st.floats(0.1, 3))
def test_weights_are_shares_from_most_to_least(num_tasks: int, exponent: float) -> None:
    weights = task_weights(Zipf(exponent=exponent), num_tasks)

    assert sum(weights) == pytest.approx(1)
    assert list(weights) == sorted(weights, reverse=True)
    assert set(task_weights(Uniform(), num_tasks)) == {1 / num_tasks}


def test_nothing_asked_has_no_top() -> None:
    assert top_shares([0, 0]) == (0, 0)


def test_tasks_are_asked_by_their_popularity() -> None:
    requests = Requests(Scenario(name="x", popularity=Zipf(exponent=1.0)), TASKS, seed=3)
    counts = Counter(tasks[0] for tasks, _ in (requests.draw() for _ in range(4000)))

    weights = task_weights(Zipf(exponent=1.0), 16)
    assert counts["task0"] / 4000 == pytest.approx(weights[0], abs=0.03)
    assert counts["task15"] / 4000 == pytest.approx(weights[15], abs=0.03)


@pytest.mark.parametrize("popularity", [Uniform(), Zipf(exponent=2.0)])
def test_request_asks_distinct_tasks_in_the_mix_of_widths(popularity: Uniform | Zipf) -> None:
    widths = (Width(tasks=1, weight=3), Width(tasks=8, weight=1), Width(tasks=40, weight=1))
    requests = Requests(Scenario(name="x", widths=widths, popularity=popularity), TASKS, seed=0)

    asked = [tasks for tasks, _ in (requests.draw() for _ in range(1000))]

    assert all(len(set(tasks)) == len(tasks) for tasks in asked)
    counts = Counter(map(len, asked))
    assert set(counts) == {1, 8, 16}, "more tasks than there are means all of them"
    assert counts[1] / 1000 == pytest.approx(0.6, abs=0.06)
