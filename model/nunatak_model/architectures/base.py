"""What every architecture provides; each is one module beside this file.

Axes: tokens = packed tokens of the rows, width = hidden width.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from jaxtyping import Float
from torch import Tensor

from nunatak_model.config import BackboneConfig
from nunatak_model.encoding import Encoding
from nunatak_model.mixed_layer import MixedLayer
from nunatak_model.weights import EmbeddingWeights, Shapes


class RunLayer(Protocol):
    """Runs layers over the packed rows that it was planned for."""

    def __call__(
        self,
        hidden: Float[Tensor, "tokens width"],
        layer: MixedLayer,
        *,
        dropout: float,
    ) -> Float[Tensor, "tokens width"]:
        """Run one layer; each row's result is what its task's own layer gives for it alone."""
        ...


class Architecture(Protocol):
    """One way to compute an encoder, and to read it from transformers' checkpoints.

    A module fits: its functions are the methods. Tensors go by our names, `embeddings.word` or
    `layers.3.qkv.weight`; query, key and value are stacked into `qkv`, in this order.
    """

    def config_from(self, raw: dict[str, Any]) -> BackboneConfig:
        """Read transformers' `config.json`.

        Raises:
            UnsupportedBackboneError: a variant that is computed differently.
        """
        ...

    def identity(self, config: BackboneConfig) -> str:
        """What a digest must read beside names, shapes and bytes of the tensors."""
        ...

    def source_names(self, target: str) -> tuple[str, ...]:
        """Names, without prefix, of the stored tensors that stacked make our tensor `target`."""
        ...

    def embedding_shapes(self, config: BackboneConfig) -> Shapes:
        """Names and shapes of the embeddings."""
        ...

    def layer_shapes(self, layer: int, config: BackboneConfig) -> Shapes:
        """Names and shapes of one layer."""
        ...

    def embed(
        self, encodings: Sequence[Encoding], tables: EmbeddingWeights, config: BackboneConfig
    ) -> Float[Tensor, "tokens width"]:
        """What the first layer reads, for rows packed one after another."""
        ...

    def plan_layers(self, lengths: Sequence[int], config: BackboneConfig) -> RunLayer:
        """Prepare what layers share over packed rows of these lengths."""
        ...
