import math

import numpy as np
import pytest

from nunatak_contract.enums import IntervalMethod
from nunatak_contract.evidence import MetricRecord
from nunatak_training.data import Example, ExampleSet
from nunatak_training.kinds import Metric
from nunatak_training.scoring.statistics import Statistics, mean_of


def share_of_ones(num_units: int, share: float, *, is_proportion: bool = False) -> Statistics:
    values = (np.arange(num_units) < share * num_units).astype(float)
    return Statistics(
        num_units=num_units,
        by_metric={Metric.ACCURACY: mean_of(values)},
        proportions=frozenset({Metric.ACCURACY} if is_proportion else ()),
    )


def score_of(statistics: Statistics, *, seed: int = 0) -> MetricRecord:
    examples = ExampleSet(examples=(Example(text="x", label="a"),) * statistics.num_units)
    return statistics.scores([Metric.ACCURACY], examples, seed=seed)[Metric.ACCURACY]


def test_a_perfect_proportion_of_few_examples_leaves_doubt() -> None:
    found = score_of(share_of_ones(31, 1.0, is_proportion=True))

    assert found.interval is not None
    assert found.interval[0] < 0.9
    assert found.interval[1] == 1.0
    assert found.interval_method is IntervalMethod.WILSON


@pytest.mark.parametrize("num_units", [100, 2500])
def test_interval_of_a_mean_by_bootstrap_is_that_of_theory(num_units: int) -> None:
    found = score_of(share_of_ones(num_units, 0.8))

    half = 1.96 * math.sqrt(0.8 * 0.2 / num_units)
    assert found.interval == pytest.approx((0.8 - half, 0.8 + half), abs=half / 5)
    assert found.interval_method is IntervalMethod.BOOTSTRAP


def test_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    first, again, other = (score_of(share_of_ones(50, 0.5), seed=it).interval for it in (1, 1, 2))

    assert first == again != other


@pytest.mark.parametrize("value", [1.0, pytest.param(1 / math.log2(3), id="rounded")])
def test_a_bootstrap_whose_resamples_all_agree_claims_no_interval(value: float) -> None:
    equal = mean_of(np.full(7, value))

    found = score_of(Statistics(num_units=7, by_metric={Metric.ACCURACY: equal}))

    assert found.interval is found.interval_method is None
