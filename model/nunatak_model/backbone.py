"""The backbone: one frozen encoder, shared by every task."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nunatak_model.config import BackboneConfig, Pooling
from nunatak_model.linear import can_pack, packed
from nunatak_model.tokenizer import TextTokenizer
from nunatak_model.weights import EmbeddingWeights, LayerWeights, Linear, Norm, layer_from


@dataclass(frozen=True, slots=True, kw_only=True)
class Backbone:
    """A pretrained encoder; its tensors are never written again."""

    name: str
    digest: str
    """SHA-256 over configuration, tokenizer and stored weights; the same at any dtype."""
    config: BackboneConfig
    tokenizer: TextTokenizer
    pooling: Pooling
    """How the checkpoint was trained to turn token vectors into one."""
    pooler: Linear | None
    """The checkpoint's dense layer after pooling, from which heads start; not encoder."""
    pooler_norm: Norm | None
    """The norm after it, where the architecture has one there."""
    parameters: Mapping[str, Tensor]
    """All encoder weights by stored name; `embeddings` and `layers` are views of the same."""
    embeddings: EmbeddingWeights
    layers: tuple[LayerWeights, ...]

    @property
    def is_packed(self) -> bool:
        """Whether its linear maps are laid out for serving, and take no gradients."""
        return any(tensor.is_mkldnn for tensor in self.parameters.values())

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights."""
        return self.embeddings.word.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embeddings.word.device

    @property
    def num_parameters(self) -> int:
        """Parameters of embeddings and layers."""
        return sum(tensor.numel() for tensor in self.parameters.values())

    @property
    def num_bytes(self) -> int:
        """Bytes of embeddings and layers."""
        return sum(tensor.nbytes for tensor in self.parameters.values())


def pack_backbone(backbone: Backbone) -> Backbone:
    """The same backbone with its linear maps packed for serving, where the processor gains by it.

    Branches follow by `convert_branch`. Elsewhere the backbone itself is returned.
    """
    if not can_pack(backbone.dtype, backbone.device):
        return backbone
    parameters = packed(backbone.parameters)
    return replace(
        backbone,
        parameters=parameters,
        layers=tuple(layer_from(parameters, index) for index in range(len(backbone.layers))),
    )
