"""Ranking: how well a document answers a query, one score a pair.

Pairs are learnt one by one, as cross-encoders commonly are: binary cross-entropy against the grade
of relevance, scaled so that the lowest grade of the train examples is 0 and the highest 1. Scores
read the grades as they are given: what is relevant does not depend on what was trained on.

Axes: rows = pairs of a batch.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from nunatak_model import TextTokenizer
from nunatak_training.data import ExampleSet, Relevance, TaskData
from nunatak_training.loop.encoded import EncodedSet
from nunatak_training.metrics import Metric
from nunatak_training.objectives.base import Logits, ServedAsTrained, encode_texts, stacked
from nunatak_training.scoring import Statistics, mean_of
from nunatak_training.scoring.ranking import Values, ndcg, reciprocal_rank


class Ranking(ServedAsTrained):
    """A score a document: its place among those of the query is what counts."""

    metrics = (Metric.NDCG, Metric.MRR)
    reported = metrics

    def __init__(self, data: TaskData) -> None:
        grades = [label.grade for label in data.train.labels(Relevance)]
        self._lowest = min(grades)
        self._range = max(grades) - self._lowest

    def encode(
        self, examples: ExampleSet, tokenizer: TextTokenizer, *, max_length: int
    ) -> EncodedSet:
        """Each pair has its scaled grade."""
        targets = [
            torch.tensor([(label.grade - self._lowest) / self._range]).clamp(0, 1)
            for label in examples.labels(Relevance)
        ]
        return encode_texts(examples, targets, tokenizer, max_length=max_length)

    def loss(self, logits: Logits, targets: Sequence[Tensor]) -> Float[Tensor, ""]:
        """Mean binary cross-entropy of the pairs."""
        return functional.binary_cross_entropy_with_logits(*stacked(logits, targets))

    def statistics(self, examples: ExampleSet, encoded: EncodedSet, logits: Logits) -> Statistics:
        """Score the order of each group; groups without a grade above 0 do not count."""
        scores = torch.cat(list(logits)).double().cpu().numpy()
        members: defaultdict[str, list[int]] = defaultdict(list)
        labels = examples.labels(Relevance)
        for position, label in enumerate(labels):
            members[label.group].append(position)
        gains = np.maximum([label.grade for label in labels], 0.0)
        groups = [group for group in members.values() if gains[group].any()]

        def each(measure: Callable[[Values, Values], float]) -> Float[np.ndarray, " groups"]:
            return np.array([measure(gains[group], scores[group]) for group in groups])

        return Statistics(
            num_units=len(groups),
            by_metric={
                Metric.NDCG: mean_of(each(ndcg)),
                Metric.MRR: mean_of(each(reciprocal_rank)),
            },
        )
