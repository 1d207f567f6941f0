# scikit-learn ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from nunatak_training.scoring.ranking import ndcg, reciprocal_rank


@pytest.mark.parametrize("seed", range(5))
def test_ndcg_is_that_of_scikit_learn(seed: int) -> None:
    source = np.random.default_rng(seed)
    gains = source.integers(5, size=12).astype(float)
    scores = source.normal(size=12)

    assert ndcg(gains, scores) == pytest.approx(ndcg_score([gains], [scores]))


def test_single_document_is_in_its_place() -> None:
    assert ndcg(np.array([1.0]), np.array([-3.0])) == 1.0


def test_reciprocal_rank_is_of_the_first_relevant_document() -> None:
    gains = np.array([0.0, 2.0, 0.0, 1.0])

    assert reciprocal_rank(gains, np.array([9.0, 1.0, 8.0, 7.0])) == pytest.approx(1 / 3)
