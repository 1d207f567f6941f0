"""The interface of an architecture; each architecture is one module next to this file.

Axes: tokens = packed tokens of the rows, read = those that heads read at the top, or all of them,
width = hidden width.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from nunatak_contract.enums import Pooling
from nunatak_contract.heads import DenseBlock
from nunatak_model.config import BackboneConfig
from nunatak_model.layer import MixedLayer
from nunatak_model.ops.attention import Attention
from nunatak_model.text.encoding import Encoding
from nunatak_model.weights import EmbeddingWeights, Shapes

ConfigT_contra = TypeVar("ConfigT_contra", bound=BackboneConfig, contravariant=True)


@runtime_checkable
class RunLayer(Protocol):
    """Runs the layers of one encoder over packed rows."""

    def __call__(
        self, hidden: Float[Tensor, "tokens width"], layer: MixedLayer, *, dropout: float
    ) -> Float[Tensor, "read width"]:
        """Run one layer; each row's result equals the result of its task's own layer alone."""
        ...


class Architecture(Protocol[ConfigT_contra]):
    """One way to compute an encoder, and to read it from transformers' checkpoints.

    The functions of a module are the methods. Tensors have our names, such as
    `layers.3.qkv.weight`.
    """

    HEAD_SOURCES: Mapping[str, str]
    """Stored names of the tensors from which a head may start: `head.dense` and `head.norm`."""

    def config_from(self, raw: dict[str, Any]) -> BackboneConfig:
        """Read `config.json`; raise `UnsupportedBackboneError` for other computations."""
        ...

    def identity(self, config: ConfigT_contra) -> str:
        """Return the facts for a digest, in addition to names, shapes and bytes of the tensors."""
        ...

    def source_names(self, target: str) -> tuple[str, ...]:
        """Names, without prefix, of the stored tensors. Stacked, they form our tensor `target`."""
        ...

    def dense_block(self, config: ConfigT_contra, pooling: Pooling | None) -> DenseBlock | None:
        """The dense block of transformers' heads with this pooling."""
        ...

    def embedding_shapes(self, config: ConfigT_contra) -> Shapes: ...

    def layer_shapes(self, layer: int, config: ConfigT_contra) -> Shapes: ...

    def embed(
        self, encodings: Sequence[Encoding], tables: EmbeddingWeights, config: ConfigT_contra
    ) -> Float[Tensor, "tokens width"]:
        """The input of the first layer, for rows packed one after another."""
        ...

    def plan_layers(self, attention: Attention, config: ConfigT_contra) -> RunLayer:
        """Prepare the parts that all layers share over the packed rows of this attention."""
        ...
