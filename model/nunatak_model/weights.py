"""The parameters of embeddings and layers, and their stored names.

Axes: out, in = widths of a linear map; width = hidden width; vocab, positions, types = table rows.
The three attention projections are one map, `qkv`: query, key and value stacked in this order.
Parameters of many tasks, stacked for grouped kernels, have an axis `slots` in front.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped, UInt8
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from nunatak_model.errors import InvalidTensorsError

Shapes = dict[str, tuple[int, ...]]
WORDS = "embeddings.word"
PROJECTION = "embeddings.projection"
RELATIVE, RELATIVE_NORM = "embeddings.relative", "embeddings.relative_norm"
"""Stored names. Relative positions belong to the embeddings, because all layers share them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """`y = x @ weight.T + bias`; some architectures have no bias.

    The integers of a quantized weight may be packed (see `ops.int8`).
    """

    weight: UInt8[Tensor, "blocks groups 16 4"] | Shaped[Tensor, "*slots out in"]
    bias: Float[Tensor, "*slots out"] | None
    scale: Float[Tensor, " out"] | None = None
    """The value of one integer step of a quantized weight."""

    @property
    def is_packed_integers(self) -> bool:
        return self.weight.dtype is torch.uint8

    @property
    def widths(self) -> tuple[int, int]:
        """Of output and input."""
        if self.scale is not None and self.is_packed_integers:
            return len(self.scale), self.weight.shape[1] * self.weight.shape[3]
        return self.weight.shape[-2], self.weight.shape[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """Gain and offset of a norm; some architectures have no offset."""

    weight: Float[Tensor, "*slots width"]
    bias: Float[Tensor, "*slots width"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativePositions:
    """Parameters for the distance between two tokens, which the attention of all layers reads."""

    table: Float[Tensor, "distances width"]
    norm: Norm | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingWeights:
    """Embedding tables and their norm; some architectures have only the word table."""

    word: Shaped[Tensor, "vocab width"]
    position: Float[Tensor, "positions width"] | None
    token_type: Float[Tensor, "types width"] | None
    norm: Norm | None
    projection: Linear | None = None
    """From the width of the tables to the hidden width."""
    relative: RelativePositions | None = None
    word_scale: Float[Tensor, " vocab"] | None = None
    """The value of one integer step of each quantized word."""
    dtype: torch.dtype
    """Of the embedded tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One transformer layer. The two norms stand after the blocks or before the blocks."""

    qkv: Linear
    attention_output: Linear
    attention_norm: Norm | None
    """None if the first layer reads normalised embeddings."""
    feedforward_in: Linear
    feedforward_out: Linear
    output_norm: Norm
    """Of the feed-forward block."""
    final_norm: Norm | None
    """The norm over the last layer's output, if norms stand before blocks."""
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    """Of each head's query and key."""
    relative: RelativePositions | None = None
    """The relative positions of a task that owns its embeddings; None: the backbone's."""


def linear_shapes(prefix: str, *, out: int, into: int, bias: bool = True) -> Shapes:
    weight: Shapes = {f"{prefix}.weight": (out, into)}
    return {**weight, f"{prefix}.bias": (out,)} if bias else weight


def norm_shapes(prefix: str, width: int, *, bias: bool = True) -> Shapes:
    weight: Shapes = {f"{prefix}.weight": (width,)}
    return {**weight, f"{prefix}.bias": (width,)} if bias else weight


def linear_from(tensors: Mapping[str, Tensor], prefix: str) -> Linear:
    return Linear(
        weight=tensors[f"{prefix}.weight"],
        bias=tensors.get(f"{prefix}.bias"),
        scale=tensors.get(f"{prefix}.weight_scale"),
    )


def norm_from(tensors: Mapping[str, Tensor], prefix: str) -> Norm:
    return Norm(weight=tensors[f"{prefix}.weight"], bias=tensors.get(f"{prefix}.bias"))


def norm_if_any(tensors: Mapping[str, Tensor], prefix: str) -> Norm | None:
    return norm_from(tensors, prefix) if f"{prefix}.weight" in tensors else None


def layer_from(tensors: Mapping[str, Tensor], layer: int) -> LayerWeights:
    prefix = f"layers.{layer}"
    return LayerWeights(
        qkv=linear_from(tensors, f"{prefix}.qkv"),
        attention_output=linear_from(tensors, f"{prefix}.attention_output"),
        attention_norm=norm_if_any(tensors, f"{prefix}.attention_norm"),
        feedforward_in=linear_from(tensors, f"{prefix}.feedforward_in"),
        feedforward_out=linear_from(tensors, f"{prefix}.feedforward_out"),
        output_norm=norm_from(tensors, f"{prefix}.output_norm"),
        final_norm=norm_if_any(tensors, f"{prefix}.final_norm"),
        query_norm=norm_if_any(tensors, f"{prefix}.query_norm"),
        key_norm=norm_if_any(tensors, f"{prefix}.key_norm"),
        relative=_relative_from(tensors),
    )


def embeddings_from(tensors: Mapping[str, Tensor]) -> EmbeddingWeights:
    return EmbeddingWeights(
        word=tensors[WORDS],
        position=tensors.get("embeddings.position"),
        token_type=tensors.get("embeddings.token_type"),
        norm=norm_if_any(tensors, "embeddings.norm"),
        projection=linear_from(tensors, PROJECTION) if f"{PROJECTION}.weight" in tensors else None,
        relative=_relative_from(tensors),
        word_scale=tensors.get(f"{WORDS}_scale"),
        dtype=tensors["layers.0.output_norm.weight"].dtype,
    )


def _relative_from(tensors: Mapping[str, Tensor]) -> RelativePositions | None:
    table = tensors.get(RELATIVE)
    if table is None:
        return None
    return RelativePositions(table=table, norm=norm_if_any(tensors, RELATIVE_NORM))


def tensors_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Serialise tensors; equal tensors give equal bytes."""
    return save({name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)})


def tensors_from_bytes(data: bytes) -> dict[str, Tensor]:
    """Read tensors, which own their memory; raise `InvalidTensorsError` at other bytes."""
    try:
        return load(data)
    except (SafetensorError, ValueError) as error:
        raise InvalidTensorsError(f"expected safetensors bytes: {error}") from error
