"""How well scores order the documents of one query."""

import numpy as np
from jaxtyping import Float

Values = Float[np.ndarray, " documents"]


def ndcg(gains: Values, scores: Values) -> float:
    """Normalised discounted cumulative gain (Jarvelin and Kekalainen 2002, eq. 2 and sec. 2.3).

    Gains are linear and not negative, the largest above 0; documents of equal scores keep their
    order.
    """
    discounts = 1 / np.log2(np.arange(2, len(gains) + 2))
    return float(gains[_order(scores)] @ discounts) / float(np.sort(gains)[::-1] @ discounts)


def reciprocal_rank(gains: Values, scores: Values) -> float:
    """One over the place of the first document with a gain above 0."""
    return 1 / (1 + int((gains[_order(scores)] > 0).argmax()))


def _order(scores: Values) -> np.ndarray:
    return np.argsort(-scores, kind="stable")
