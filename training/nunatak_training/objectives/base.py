"""The interface of an objective, and what objectives of whole texts share."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from nunatak_model import TextTokenizer
from nunatak_training.data import ExampleSet, TaskData
from nunatak_training.kinds import Metric
from nunatak_training.loop.fit import EncodedSet
from nunatak_training.scoring.evaluation import Answer, statistics_of
from nunatak_training.scoring.statistics import Statistics

Logits = Sequence[Float[Tensor, "*vectors outputs"]]


class Objective(ABC):
    """Turns examples into targets, logits into a loss, and logits of dev examples into scores."""

    metrics: tuple[Metric, ...]
    reported: tuple[Metric, ...]
    """By default the first one chooses the best epoch."""

    def __init__(self, data: TaskData, positive_label: str | None = None) -> None:
        self._kind, self._labels, self._positive = data.kind, data.labels, positive_label

    @abstractmethod
    def encode(
        self, examples: ExampleSet, tokenizer: TextTokenizer, *, max_length: int
    ) -> EncodedSet:
        """Return the encodings of the examples, in order, with their targets."""

    @abstractmethod
    def loss(self, logits: Logits, targets: Sequence[Tensor]) -> Float[Tensor, ""]: ...

    @abstractmethod
    def answers(
        self, examples: ExampleSet, encoded: EncodedSet, logits: Logits
    ) -> Sequence[Answer]: ...

    def statistics(self, examples: ExampleSet, encoded: EncodedSet, logits: Logits) -> Statistics:
        """Return the statistics that score the logits of encoded examples."""
        answers = self.answers(examples, encoded, logits)
        return statistics_of(self._kind, self._labels, examples, answers, self._positive)

    def finished(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parameters in the form for serving."""
        return dict(parameters)


class OfTexts(Objective):
    """An objective that encodes each text or pair once, cut to `max_length`."""

    @abstractmethod
    def targets(self, examples: ExampleSet) -> Iterable[Tensor]: ...

    def encode(
        self, examples: ExampleSet, tokenizer: TextTokenizer, *, max_length: int
    ) -> EncodedSet:
        inputs = [example.model_input for example in examples.examples]
        return EncodedSet(
            encodings=tuple(tokenizer.encode(inputs, max_length=max_length)),
            targets=tuple(self.targets(examples)),
            sizes=(1,) * len(inputs),
        )


def stacked(
    logits: Logits, targets: Sequence[Tensor]
) -> tuple[Float[Tensor, "rows outputs"], Shaped[Tensor, "rows ..."]]:
    together = torch.stack(list(logits))
    return together, torch.stack(list(targets)).to(together.device)
