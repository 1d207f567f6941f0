"""The form of an architecture, and of what runs its layers.

Axes: tokens = packed tokens of the rows, read = those that heads read at the top, or all of them,
width = hidden width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor

from nunatak_contract.enums import Pooling
from nunatak_contract.heads import DenseBlock
from nunatak_model.config import BackboneConfig
from nunatak_model.layer import MixedLayer
from nunatak_model.ops.attention import Attention
from nunatak_model.text.encoding import Encoding
from nunatak_model.weights import EmbeddingWeights, Shapes

ConfigT = TypeVar("ConfigT", bound=BackboneConfig)


RunLayer = Callable[[Tensor, MixedLayer], Tensor]
"""Runs a layer over packed rows: the states [tokens, width] become those [read, width].

Each row's result equals the result of its task's own layer alone.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture(Generic[ConfigT]):
    """One way to compute an encoder, and to read it from transformers' checkpoints.

    Tensors have our names, such as `layers.3.qkv.weight`. Stored names have no prefix.
    """

    embeddings: Mapping[str, str]
    """Stored names of the tensors of the embeddings."""
    layers: str
    """Stored name of the list of layers."""
    parts: Mapping[str, tuple[str, ...]]
    """Stored names in a layer. Stacked, the tensors of a part form our tensor."""
    head_sources: Mapping[str, str]
    """Stored names of the tensors from which a head may start: `head.dense` and `head.norm`."""
    has_late_norms: bool = False
    """Whether norms follow the blocks of a layer."""
    config_from: Callable[[dict[str, Any]], ConfigT]
    """Reads `config.json`; raises `UnsupportedBackboneError` for other computations."""
    identity: Callable[[ConfigT], str]
    """Gives the facts for a digest, in addition to names, shapes and bytes of the tensors."""
    dense_block: Callable[[ConfigT, Pooling | None], DenseBlock | None]
    """Gives the dense block of transformers' heads with this pooling."""
    embedding_shapes: Callable[[ConfigT], Shapes]
    layer_shapes: Callable[[int, ConfigT], Shapes]
    embed: Callable[[Sequence[Encoding], EmbeddingWeights, ConfigT], Tensor]
    """Gives the input of the first layer [tokens, width], for rows packed one after another."""
    plan_layers: Callable[[Attention, ConfigT], RunLayer]
    """Prepares the parts that all layers share over the packed rows of this attention."""

    def source_names(self, target: str) -> tuple[str, ...]:
        """Names of the stored tensors that, stacked, form our tensor `target`.

        The norm over the last layer's output lies in no layer there.
        """
        if target in self.embeddings:
            return (self.embeddings[target],)
        _, layer, part, kind = target.split(".")
        if part == "final_norm":
            return tuple(f"{name}.{kind}" for name in self.parts[part])
        return tuple(f"{self.layers}.{layer}.{name}.{kind}" for name in self.parts[part])
