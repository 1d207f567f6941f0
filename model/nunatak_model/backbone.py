"""The backbone: one frozen encoder, shared by every task."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nunatak_model.config import BackboneConfig, Pooling
from nunatak_model.errors import UnsupportedBackboneError
from nunatak_model.int8 import SCALE, quantized, restored
from nunatak_model.kernels import PLAIN_KERNELS, Kernels, kernels_for
from nunatak_model.linear import can_pack, packed, plain
from nunatak_model.tokenizer import TextTokenizer
from nunatak_model.weights import EmbeddingWeights, LayerWeights, Linear, Norm, layer_from

INT8_SUFFIX = "+int8"
"""Of the name of a quantized backbone, and of the source it is loaded from."""
QUANTIZATION = "int8: symmetric, weights by output, inputs by token, version 1"
"""Part of the digest: what else is to be computed needs another text."""


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
    is_packed: bool = False
    """Whether linear maps are laid out for serving, and take no gradients."""
    kernels: Kernels = PLAIN_KERNELS
    """What computes on its device."""

    @property
    def is_quantized(self) -> bool:
        """Whether the layers' linear maps are in 8-bit integers."""
        return any(layer.qkv.scale is not None for layer in self.layers)

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
        """Parameters of embeddings and layers; scales of quantized ones are none."""
        tensors = self.parameters.items()
        return sum(it.numel() for name, it in tensors if not name.endswith(SCALE))

    @property
    def num_bytes(self) -> int:
        """Bytes of embeddings and layers."""
        return sum(tensor.nbytes for tensor in self.parameters.values())

    def floating(self, name: str) -> Tensor | None:
        """The encoder weight of that name as plain numbers, or None if there is none.

        A packed one is laid out as it was, and of an integer one it is what it stands for.
        """
        tensor = self.parameters.get(name)
        if tensor is None or tensor.is_floating_point():
            return None if tensor is None else plain(tensor)
        return restored(tensor, self.parameters[f"{name.removesuffix('weight')}{SCALE}"])


def quantize_backbone(backbone: Backbone) -> Backbone:
    """The backbone whose layers multiply in 8-bit integers (see `nunatak_model.int8`).

    It computes other numbers, so it is another backbone, with a digest and a name of its own:
    tasks are trained on it to be served on it, and those of the original are refused.

    Raises:
        UnsupportedBackboneError: it is packed or quantized, or not on a processor.
    """
    if backbone.is_packed or backbone.is_quantized or backbone.device.type != "cpu":
        raise UnsupportedBackboneError(
            f"only a plain backbone on the CPU can be quantized, got {backbone.name!r} on "
            f"{backbone.device}; serve it as it is"
        )
    parameters = quantized(backbone.parameters)
    digest = hashlib.sha256(f"{backbone.digest} {QUANTIZATION}".encode()).hexdigest()
    return replace(
        backbone,
        name=f"{backbone.name}{INT8_SUFFIX}",
        digest=digest,
        parameters=parameters,
        layers=tuple(layer_from(parameters, index) for index in range(len(backbone.layers))),
    )


def pack_backbone(backbone: Backbone) -> Backbone:
    """The same backbone ready to serve; branches follow by `convert_branch`.

    Where the processor gains by it, its linear maps are packed; on other devices, it gets the
    kernels that are fastest there.
    """
    if not can_pack(backbone.dtype, backbone.device):
        kernels = kernels_for(backbone.config, dtype=backbone.dtype, device=backbone.device)
        return replace(backbone, kernels=kernels)
    parameters = packed(backbone.parameters)
    return replace(
        backbone,
        parameters=parameters,
        layers=tuple(layer_from(parameters, index) for index in range(len(backbone.layers))),
        is_packed=True,
    )
