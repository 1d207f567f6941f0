"""Laws of correlation and of the order of documents."""

# scipy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# scikit-learn ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import ndcg_score

from nunatak_training.scoring.scores import ndcg, pearson, reciprocal_rank, spearman


@pytest.mark.parametrize("seed", range(3))
def test_correlations_match_scipy_for_any_weights(seed: int) -> None:
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


@pytest.mark.parametrize("seed", range(5))
def test_ndcg_matches_scikit_learn(seed: int) -> None:
    source = np.random.default_rng(seed)
    gains = source.integers(5, size=12).astype(float)
    scores = source.normal(size=12)

    assert ndcg(gains, scores) == pytest.approx(ndcg_score([gains], [scores]))


def test_single_document_is_in_its_place() -> None:
    assert ndcg(np.array([1.0]), np.array([-3.0])) == 1.0


def test_reciprocal_rank_is_of_the_first_relevant_document() -> None:
    gains = np.array([0.0, 2.0, 0.0, 1.0])

    assert reciprocal_rank(gains, np.array([9.0, 1.0, 8.0, 7.0])) == pytest.approx(1 / 3)
