"""Objectives of whole texts: one label, any number of labels, a value, or a grade of a pair.

Axes: rows = texts or pairs of a batch, labels.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from nunatak_training.data import ExampleSet, LabelSet, Relevance, TaskData
from nunatak_training.data.splits import names_in
from nunatak_training.kinds import Metric
from nunatak_training.loop.fit import EncodedSet
from nunatak_training.objectives.base import Logits, OfTexts, stacked
from nunatak_training.scoring.statistics import LABEL_METRICS

LABEL_SHARE = 0.5
"""The weight of an example's own label next to its teacher."""
OUTPUT_WEIGHT, OUTPUT_BIAS = "head.output.weight", "head.output.bias"


class _Classifying(OfTexts):
    """Names of labels, one of which may be the positive label."""

    of_labels: Callable[..., Tensor]
    """The mean loss of logits, from labels or from shares of labels."""

    def __init__(
        self, data: TaskData, positive_label: str | None, temperature: float = 1.0
    ) -> None:
        super().__init__(data, positive_label)
        self._temperature = temperature

    @abstractmethod
    def labelled(self, examples: ExampleSet) -> list[Tensor]:
        """The targets of examples that nobody teaches."""

    @abstractmethod
    def softened(self, shares: Float[Tensor, "rows labels"]) -> Float[Tensor, "rows labels"]:
        """The shares of the logits over the temperature."""

    def targets(self, examples: ExampleSet) -> list[Tensor]:
        """The labels. Of taught texts: the softened shares of the teacher, and the label as shares.

        A text without a label of its own has the teacher's shares in place of the label.
        """
        if not examples.is_taught:
            return self.labelled(examples)
        said = [dict(it.shares) for it in examples.examples]
        own = [
            dict.fromkeys(names_in(it.label), 1.0) if it.has_label else shares
            for it, shares in zip(examples.examples, said, strict=True)
        ]
        softened, hard = (
            torch.tensor([[shares.get(name, 0.0) for name in self._labels] for shares in rows])
            for rows in (said, own)
        )
        return list(torch.stack([self.softened(softened), hard], dim=1))

    def loss(self, logits: Logits, targets: Sequence[Tensor]) -> Float[Tensor, ""]:
        """The loss of the labels; of taught texts, its mean with a loss of the teacher's shares.

        Hinton, Vinyals and Dean 2015 (arXiv:1503.02531), sec. 2: the latter is of softened shares
        and logits, times the square of the temperature. It is the divergence from the teacher and
        a constant.
        """
        found, wanted = stacked(logits, targets)
        if wanted.ndim < 3:
            return self.of_labels(found, wanted)
        softened, own = wanted.unbind(dim=1)
        soft = self.of_labels(found / self._temperature, softened) * self._temperature**2
        return (1 - LABEL_SHARE) * soft + LABEL_SHARE * self.of_labels(found, own)


class SingleLabel(_Classifying):
    """One label per text: softmax and cross-entropy."""

    metrics = LABEL_METRICS
    reported = (Metric.ACCURACY,)

    of_labels = staticmethod(functional.cross_entropy)

    def labelled(self, examples: ExampleSet) -> list[Tensor]:
        number_of = {label: number for number, label in enumerate(self._labels)}
        return [torch.tensor(number_of[label]) for label in examples.labels(str)]

    def softened(self, shares: Float[Tensor, "rows labels"]) -> Float[Tensor, "rows labels"]:
        return (shares.log() / self._temperature).softmax(dim=1)

    def answers(self, examples: ExampleSet, encoded: EncodedSet, logits: Logits) -> list[str]:
        chosen = cast("list[int]", torch.stack(list(logits)).argmax(dim=1).tolist())
        return [self._labels[number] for number in chosen]


class MultiLabel(_Classifying):
    """Any number of labels per text: one sigmoid per label; a label applies from one half up."""

    metrics = (Metric.F1_MICRO, Metric.F1_MACRO, Metric.F1, Metric.ACCURACY)
    reported = (Metric.F1_MICRO, Metric.F1_MACRO, Metric.ACCURACY)

    of_labels = staticmethod(functional.binary_cross_entropy_with_logits)

    def labelled(self, examples: ExampleSet) -> list[Tensor]:
        sets = [label.names for label in examples.labels(LabelSet)]
        return [torch.tensor([float(it in names) for it in self._labels]) for names in sets]

    def softened(self, shares: Float[Tensor, "rows labels"]) -> Float[Tensor, "rows labels"]:
        return (shares.logit() / self._temperature).sigmoid()

    def answers(
        self, examples: ExampleSet, encoded: EncodedSet, logits: Logits
    ) -> list[tuple[str, ...]]:
        return [tuple(compress(self._labels, row >= 0)) for row in logits]


class Regression(OfTexts):
    """One value per text: squared error of standardised values.

    Standardised by the train values, so that learning rates fit values of any size. The last layer
    of the served head includes scale and mean, so the served head gives the values themselves.
    """

    metrics = (Metric.SPEARMAN, Metric.PEARSON)
    reported = metrics

    def __init__(self, data: TaskData) -> None:
        super().__init__(data)
        values = np.array(data.train.labels(float))
        self._mean = float(values.mean())
        self._deviation = float(values.std())

    def targets(self, examples: ExampleSet) -> list[Tensor]:
        values = examples.labels(float)
        for place, example in enumerate(examples.examples):
            # The squared error of the mean of two values has the gradient of both errors' mean.
            for _, said in example.shares:
                values[place] += (1 - LABEL_SHARE) * (said - values[place])
        return [torch.tensor([(value - self._mean) / self._deviation]) for value in values]

    def loss(self, logits: Logits, targets: Sequence[Tensor]) -> Float[Tensor, ""]:
        return functional.mse_loss(*stacked(logits, targets))

    def answers(self, examples: ExampleSet, encoded: EncodedSet, logits: Logits) -> list[float]:
        return torch.cat(list(logits)).tolist()

    def finished(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            **parameters,
            OUTPUT_WEIGHT: parameters[OUTPUT_WEIGHT] * self._deviation,
            OUTPUT_BIAS: parameters[OUTPUT_BIAS] * self._deviation + self._mean,
        }


class Ranking(OfTexts):
    """A score per document. Only the rank among the documents of the query counts."""

    metrics = (Metric.NDCG, Metric.MRR)
    reported = metrics

    def __init__(self, data: TaskData) -> None:
        super().__init__(data)
        grades = [label.grade for label in data.train.labels(Relevance)]
        self._lowest = min(grades)
        self._range = max(grades) - self._lowest

    def targets(self, examples: ExampleSet) -> list[Tensor]:
        grades = [label.grade for label in examples.labels(Relevance)]
        return [torch.tensor([(it - self._lowest) / self._range]).clamp(0, 1) for it in grades]

    def loss(self, logits: Logits, targets: Sequence[Tensor]) -> Float[Tensor, ""]:
        return functional.binary_cross_entropy_with_logits(*stacked(logits, targets))

    def answers(self, examples: ExampleSet, encoded: EncodedSet, logits: Logits) -> list[float]:
        return torch.cat(list(logits)).tolist()
