"""The trunk states of one input set at one depth, as one packed tensor.

Axes: tokens = packed tokens of the set, width = hidden width.
"""

from collections.abc import Callable, Collection, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from nunatak_model import Backbone, TrunkSource, TrunkStates, run_trunk
from nunatak_training.trunk.inputs import InputSet

Progress = Callable[[int, int], None]
"""Is told how many inputs are done, and of how many."""


class SetStates:
    """The states of a set, where the forward looks for trunk states; they never change.

    Whoever opens it says that the states are those of these inputs; a source of another backbone,
    format or device is answered like an unknown input.
    """

    def __init__(
        self,
        backbone: Backbone,
        inputs: InputSet,
        depth: int,
        packed: Float[Tensor, "tokens width"],
    ) -> None:
        self._backbone = backbone
        self._depths = (depth,)
        self._packed = packed
        self._places = {
            (encoding.token_ids, encoding.type_ids): slice(begin, begin + encoding.num_tokens)
            for encoding, begin in zip(inputs.encodings, inputs.offsets, strict=False)
        }

    @property
    def num_bytes(self) -> int:
        """Bytes of the states, in memory or in a file that is mapped to it."""
        return self._packed.nbytes

    def depths(self, source: TrunkSource) -> Collection[int]:
        """Return the one depth, if the input is one of the set."""
        belongs = (
            source.backbone == self._backbone.digest
            and source.dtype == self._backbone.dtype
            and source.device == self._backbone.device
        )
        return self._depths if belongs and _key(source) in self._places else ()

    def read(self, source: TrunkSource, depth: int) -> Float[Tensor, "tokens width"]:
        """Return the state of an input of the set, on the backbone's device.

        Raises:
            KeyError: it is not of the set.
        """
        return self._packed[self._places[_key(source)]].to(self._backbone.device)

    def offer(self, source: TrunkSource, depth: int, state: Float[Tensor, "tokens width"]) -> None:
        """Keep nothing: the set is complete as it is."""


def compute_states(
    backbone: Backbone,
    inputs: InputSet,
    depth: int,
    *,
    below: TrunkStates | None,
    progress: Progress,
) -> Iterator[Float[Tensor, "_ width"]]:
    """Yield the states of one chunk of inputs after another, on the CPU.

    `below` holds states of the same inputs at a smaller depth, from which the pass then starts.
    """
    done, num_inputs = 0, len(inputs.encodings)
    progress(done, num_inputs)
    for chunk in inputs.chunks():
        with torch.no_grad():
            hidden = run_trunk(backbone, chunk, depth=depth, trunk=below).hidden
            packed = torch.cat([hidden[encoding] for encoding in chunk]).cpu()
        done += len(chunk)
        progress(done, num_inputs)
        yield packed


def _key(source: TrunkSource) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return source.token_ids, source.type_ids
