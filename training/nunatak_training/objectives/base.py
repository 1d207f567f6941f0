"""The interface of an objective, and the parts that objectives of whole texts share."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from nunatak_model import TextTokenizer
from nunatak_training.data import ExampleSet
from nunatak_training.kinds import Metric
from nunatak_training.loop.fit import EncodedSet
from nunatak_training.scoring import Statistics

Logits = Sequence[Float[Tensor, "*vectors outputs"]]


class Objective(ABC):
    """Turns examples into targets, logits into a loss, and logits of dev examples into scores."""

    metrics: tuple[Metric, ...]
    reported: tuple[Metric, ...]
    """By default the first one chooses the best epoch."""

    @abstractmethod
    def encode(
        self, examples: ExampleSet, tokenizer: TextTokenizer, *, max_length: int
    ) -> EncodedSet:
        """Return the encodings of the examples, in order, with their targets."""

    @abstractmethod
    def loss(self, logits: Logits, targets: Sequence[Tensor]) -> Float[Tensor, ""]: ...

    @abstractmethod
    def statistics(self, examples: ExampleSet, encoded: EncodedSet, logits: Logits) -> Statistics:
        """Return the statistics that score the logits of encoded examples."""

    def finished(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parameters in the form for serving."""
        return dict(parameters)


def encode_texts(
    examples: ExampleSet, targets: Iterable[Tensor], tokenizer: TextTokenizer, *, max_length: int
) -> EncodedSet:
    """Encode each text or pair once, cut to `max_length`."""
    inputs = [example.model_input for example in examples.examples]
    return EncodedSet(
        encodings=tuple(tokenizer.encode(inputs, max_length=max_length)),
        targets=tuple(targets),
        sizes=(1,) * len(inputs),
    )


def stacked(
    logits: Logits, targets: Sequence[Tensor]
) -> tuple[Float[Tensor, "rows outputs"], Shaped[Tensor, "rows ..."]]:
    together = torch.stack(list(logits))
    return together, torch.stack(list(targets)).to(together.device)
