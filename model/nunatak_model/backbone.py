"""The backbone: one frozen encoder, shared by every task."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter

import torch
from jaxtyping import Float
from torch import Tensor

from nunatak_contract.enums import Pooling
from nunatak_model.config import BackboneConfig
from nunatak_model.errors import UnsupportedBackboneError
from nunatak_model.ops.choice import PLAIN_OPS, Ops, ops_for, proven_ops
from nunatak_model.ops.int8 import count_parameters, packed_integers, quantized, restored, scale_of
from nunatak_model.ops.linear import apply_linear, can_pack, packed, plain
from nunatak_model.ops.native import NO_TASK_KERNELS
from nunatak_model.text.tokenizer import TextTokenizer
from nunatak_model.weights import (
    EmbeddingWeights,
    LayerWeights,
    Linear,
    Norm,
    embeddings_from,
    layer_from,
    linear_from,
)

INT8_SUFFIX = "+int8"
"""Suffix of the name and of the source of a quantized backbone."""
QUANTIZATION = "int8: symmetric, words by row, weights by output, inputs by token, version 2"
"""Part of the digest. Another quantization needs another text."""
INT8, FLOAT32, BFLOAT16 = "int8", "float32", "bfloat16"
NUM_TOKENS, NUM_ROUNDS = 32, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """The record of one weight of a backbone layer that is not in memory."""

    dtype: torch.dtype
    digest: str
    """SHA-256 of its values in `dtype`."""
    num_bytes: int
    """In the served layout."""

    def equals(self, tensor: Tensor) -> bool:
        """Whether a tensor, rounded to the weight's dtype, has the same values."""
        return _digest(tensor.to(self.dtype)) == self.digest


def _digest(tensor: Tensor) -> str:
    values = tensor.detach().cpu().contiguous().view(torch.uint8).numpy()
    return hashlib.sha256(values.data).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Backbone:
    """A pretrained encoder. Its tensors never change."""

    name: str
    source: str
    """For an added backbone, the folder or the hub id with commit from which it was added."""
    digest: str
    """SHA-256 over configuration, tokenizer and stored weights; the same at any dtype."""
    config: BackboneConfig
    source_config: Mapping[str, object]
    """The content of `config.json`, for exports. The forward reads `config` alone."""
    tokenizer: TextTokenizer
    pooling: Pooling
    max_embedding_tokens: int
    pooler: Linear | None
    """The checkpoint's dense layer after pooling, the start of new heads."""
    pooler_norm: Norm | None
    parameters: Mapping[str, Tensor]
    """All encoder weights by stored name. `embeddings` and `layers` are views of these weights."""
    embeddings: EmbeddingWeights
    layers: tuple[LayerWeights, ...]
    """The layers from the lowest up. Fewer than configured if only the lowest are in memory."""
    left_out: Mapping[str, LeftOut] = field(default_factory=dict[str, LeftOut])
    is_packed: bool = False
    """Whether linear maps have the layout for serving, which cannot have gradients."""
    ops: Ops = PLAIN_OPS
    speeds: Mapping[str, float] = field(default_factory=dict[str, float])
    """The speed of a product over float32, by number format; empty if not measured."""

    @property
    def fast_kernels(self) -> tuple[str, ...]:
        """The kernels that stand in place of torch's own operations."""
        return (*(("packed_weights",) if self.is_packed else ()), *self.ops.fast_kernels())

    @property
    def is_quantized(self) -> bool:
        return any(layer.qkv.scale is not None for layer in self.layers)

    @property
    def dtype(self) -> torch.dtype:
        return self.embeddings.dtype

    @property
    def device(self) -> torch.device:
        return self.embeddings.word.device

    @property
    def words(self) -> Float[Tensor, "vocab width"]:
        """The table of words in floating point."""
        own = self.embeddings
        return own.word if own.word_scale is None else restored(own.word, own.word_scale)

    @property
    def num_parameters(self) -> int:
        """Number of parameters of embeddings and held layers, without scales of quantization."""
        return count_parameters(self.parameters)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.parameters.values())

    @property
    def whole_bytes(self) -> int:
        """Bytes of embeddings and all layers, as each dedicated model would hold."""
        return self.num_bytes + sum(it.num_bytes for it in self.left_out.values())

    def layer(self, index: int) -> LayerWeights | None:
        return self.layers[index] if index < len(self.layers) else None

    def equals(self, name: str, tensor: Tensor) -> bool | None:
        """Whether an encoder weight has these values, in its dtype; None for an unknown name."""
        if name in self.left_out:
            return self.left_out[name].equals(tensor)
        frozen = self.floating(name)
        if frozen is None:
            return None
        return torch.equal(tensor.to(frozen.device, frozen.dtype), frozen)

    def floating(self, name: str) -> Tensor | None:
        """The encoder weight in floating point and the plain layout; None for an unknown name."""
        tensor = self.parameters.get(name)
        if tensor is None or tensor.is_floating_point():
            return None if tensor is None else plain(tensor)
        return restored(tensor, self.parameters[scale_of(name)])


def quantize_backbone(backbone: Backbone) -> Backbone:
    """Quantize words and layers to 8-bit integers (see `nunatak_model.ops.int8`).

    A quantized backbone computes other numbers, so it has its own digest and name. Only tasks that
    were trained on the quantized backbone can be served on it.

    Raises:
        UnsupportedBackboneError: the backbone is packed or quantized, or not on the CPU.
    """
    if backbone.is_packed or backbone.is_quantized or backbone.device.type != "cpu":
        raise UnsupportedBackboneError(
            f"only a plain backbone on the CPU can be quantized, got {backbone.name!r} on "
            f"{backbone.device}; serve it as it is"
        )
    parameters = quantized(backbone.parameters)
    return replace(
        backbone,
        name=f"{backbone.name}{INT8_SUFFIX}",
        digest=quantized_digest(backbone.digest),
        parameters=parameters,
        embeddings=embeddings_from(parameters),
        layers=tuple(layer_from(parameters, index) for index in range(len(backbone.layers))),
    )


def quantized_digest(digest: str) -> str:
    """The digest of the quantized form of the backbone with this digest."""
    return hashlib.sha256(f"{digest} {QUANTIZATION}".encode()).hexdigest()


def keep_lowest_layers(backbone: Backbone, num_layers: int) -> Backbone:
    """Drop the upper layers of the backbone from memory.

    Tasks that own all layers from `num_layers` or a lower layer up answer as before. A branch that
    would read a dropped layer is refused with `layer_not_held`.

    Raises:
        UnsupportedBackboneError: no or too few layers, or the backbone is packed.
    """
    if backbone.is_packed or not 1 <= num_layers <= len(backbone.layers):
        raise UnsupportedBackboneError(
            f"{backbone.name!r} can be held with 1 to {len(backbone.layers)} of its layers, before "
            f"it is packed; got {num_layers}"
        )
    upper = tuple(f"layers.{index}." for index in range(num_layers, len(backbone.layers)))
    names = [name for name in backbone.parameters if name.startswith(upper)]
    parameters = {name: it for name, it in backbone.parameters.items() if name not in names}
    left_out = {
        name: LeftOut(
            dtype=floating.dtype,
            digest=_digest(floating),
            num_bytes=backbone.parameters[name].nbytes,
        )
        for name in names
        if (floating := backbone.floating(name)) is not None
    }
    return replace(
        backbone,
        parameters=parameters,
        layers=tuple(layer_from(parameters, index) for index in range(num_layers)),
        left_out={**backbone.left_out, **left_out},
    )


def pack_backbone(backbone: Backbone) -> Backbone:
    """Prepare a backbone to be served; `convert_branch` prepares its branches.

    The backbone gets the operations that should be the fastest on its device, each of which first
    proves itself there. On a CPU, large linear maps are packed.

    Raises:
        NunatakError: `invalid_settings`, an operation has stopped the device.
    """
    device, dtype = backbone.device, backbone.dtype
    ops = ops_for(backbone.config, dtype=dtype, device=device, is_quantized=backbone.is_quantized)
    layer = backbone.layers[0]
    maps = (layer.qkv, layer.attention_output, layer.feedforward_in, layer.feedforward_out)
    ops = proven_ops(
        ops, backbone.config, maps=[it.widths for it in maps], dtype=dtype, device=device
    )
    if not can_pack(dtype, device) and ops.integers is None:
        return replace(backbone, ops=ops)
    parameters = packed(backbone.parameters, ops.integers)
    return replace(
        backbone,
        parameters=parameters,
        layers=tuple(layer_from(parameters, index) for index in range(len(backbone.layers))),
        is_packed=True,
        ops=ops,
    )


def without_fast_kernels(backbone: Backbone) -> Backbone:
    """The same backbone with torch's own operations; its branches can stay as they are."""
    return replace(backbone, ops=PLAIN_OPS)


def number_format(backbone: Backbone) -> str:
    """The number format in which the backbone's layers multiply."""
    return INT8 if backbone.is_quantized else str(backbone.dtype).removeprefix("torch.")


def with_speeds(backbone: Backbone, clock: Callable[[], float] = perf_counter) -> Backbone:
    """The same backbone with its `speeds`: of 32 tokens times its widest map, the best of 5 runs.

    Names of CPUs do not tell: bfloat16 without AVX512-BF16 or AMX, and integers without VNNI, may
    be slower than float32. Only a CPU is measured. The other formats have the layout that they
    would be served in.
    """
    if backbone.device.type != "cpu":
        return backbone
    out, into = backbone.layers[0].feedforward_in.widths
    weight = torch.randn(out, into)
    forms = {
        FLOAT32: {"layers.0.weight": weight},
        BFLOAT16: {"layers.0.weight": weight.bfloat16()},
        INT8: quantized({"layers.0.weight": weight}),
    }
    if backbone.is_packed:
        integers = backbone.ops.integers
        if not backbone.is_quantized and backbone.ops.tasks != NO_TASK_KERNELS:
            integers = packed_integers
        forms = {name: packed(it, integers) for name, it in forms.items()}
    x = torch.randn(NUM_TOKENS, into)
    best = dict.fromkeys(forms, float("inf"))
    runs = {
        name: partial(
            apply_linear, x.bfloat16() if name == BFLOAT16 else x, linear_from(it, "layers.0")
        )
        for name, it in forms.items()
    }
    with torch.inference_mode():
        for _ in range(1 + NUM_ROUNDS):
            for name, run in runs.items():
                began = clock()
                run()
                best[name] = min(best[name], clock() - began)
    return replace(backbone, speeds={name: best[FLOAT32] / it for name, it in best.items()})
