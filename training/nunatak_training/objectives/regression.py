"""Regression: one value a text.

Axes: rows = texts of a batch.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from nunatak_model import TextTokenizer
from nunatak_training.data import ExampleSet, TaskData
from nunatak_training.loop.encoded import EncodedSet
from nunatak_training.metrics import Metric
from nunatak_training.objectives.base import Logits, encode_texts, stacked
from nunatak_training.scoring import Statistics
from nunatak_training.scoring.correlation import pearson, spearman

WEIGHT, BIAS = "head.output.weight", "head.output.bias"


class Regression:
    """One value a text: squared error of standardised values.

    While it is trained the head gives values in standard deviations from the mean of the train
    values, so that learning rates suit values of any size. What is served gives the values
    themselves: the last layer takes the scale and the mean up.
    """

    metrics = (Metric.SPEARMAN, Metric.PEARSON)
    reported = metrics

    def __init__(self, data: TaskData) -> None:
        values = np.array(data.train.labels(float))
        self._mean = float(values.mean())
        self._deviation = float(values.std())

    def encode(
        self, examples: ExampleSet, tokenizer: TextTokenizer, *, max_length: int
    ) -> EncodedSet:
        """Each text has its standardised value."""
        targets = [
            torch.tensor([(value - self._mean) / self._deviation])
            for value in examples.labels(float)
        ]
        return encode_texts(examples, targets, tokenizer, max_length=max_length)

    def loss(self, logits: Logits, targets: Sequence[Tensor]) -> Float[Tensor, ""]:
        """Mean squared error of the texts, in variances."""
        return functional.mse_loss(*stacked(logits, targets))

    def statistics(self, examples: ExampleSet, encoded: EncodedSet, logits: Logits) -> Statistics:
        """Correlate; scale and mean make no difference to that."""
        expected = np.array(examples.labels(float))
        predicted = torch.cat(list(logits)).double().cpu().numpy()
        return Statistics(
            num_units=len(examples),
            by_metric={
                Metric.SPEARMAN: spearman(expected, predicted),
                Metric.PEARSON: pearson(expected, predicted),
            },
        )

    def finished(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Let the last layer give values themselves."""
        return {
            **parameters,
            WEIGHT: parameters[WEIGHT] * self._deviation,
            BIAS: parameters[BIAS] * self._deviation + self._mean,
        }
