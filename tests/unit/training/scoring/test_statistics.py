import math

import numpy as np
import pytest

from nunatak_training.kinds import Metric
from nunatak_training.scoring import Statistics, bootstrap_intervals, mean_of


def share_of_ones(num_units: int, share: float) -> Statistics:
    values = (np.arange(num_units) < share * num_units).astype(float)
    return Statistics(num_units=num_units, by_metric={Metric.ACCURACY: mean_of(values)})


@pytest.mark.parametrize("num_units", [100, 2500])
def test_interval_of_a_share_matches_theory(num_units: int) -> None:
    intervals = bootstrap_intervals(share_of_ones(num_units, 0.8), [Metric.ACCURACY], seed=0)

    half = 1.96 * math.sqrt(0.8 * 0.2 / num_units)
    assert intervals[Metric.ACCURACY] == pytest.approx((0.8 - half, 0.8 + half), abs=half / 5)


def test_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    statistics = share_of_ones(50, 0.5)
    metrics = [Metric.ACCURACY]

    first, again, other = (bootstrap_intervals(statistics, metrics, seed=it) for it in (1, 1, 2))

    assert first == again != other


def test_units_that_agree_leave_no_doubt() -> None:
    intervals = bootstrap_intervals(share_of_ones(20, 1.0), [Metric.ACCURACY], seed=0)

    assert intervals[Metric.ACCURACY] == (1.0, 1.0)
