# scipy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from nunatak_training.scoring.correlation import pearson, spearman


@pytest.mark.parametrize("seed", range(3))
def test_correlations_are_those_of_scipy_for_any_weights(seed: int) -> None:
    source = np.random.default_rng(seed)
    expected = source.integers(6, size=50).astype(float)
    predicted = np.exp(expected + source.normal(size=50))
    weights = np.bincount(source.integers(50, size=50), minlength=50).astype(float)
    first, second = (np.repeat(it, weights.astype(int)) for it in (expected, predicted))

    assert pearson(expected, predicted)(weights) == pytest.approx(pearsonr(first, second)[0])
    assert spearman(expected, predicted)(weights) == pytest.approx(spearmanr(first, second)[0])


@pytest.mark.parametrize("statistic", [pearson, spearman])
def test_equal_predictions_correlate_with_nothing(statistic: type) -> None:
    assert statistic(np.arange(3.0), np.ones(3))(np.ones(3)) == 0.0
