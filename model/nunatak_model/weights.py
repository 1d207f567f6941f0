"""The parameters of embeddings and layers, and the names they are stored under.

Axes: out, in = widths of a linear map; width = hidden width; vocab, positions, types = table rows.
The three attention projections are one map, `qkv`: query, key and value stacked in this order.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """`y = x @ weight.T + bias`."""

    weight: Float[Tensor, "out in"]
    bias: Float[Tensor, " out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """Gain and offset of a layer norm."""

    weight: Float[Tensor, " width"]
    bias: Float[Tensor, " width"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingWeights:
    """Embedding tables and the norm over their sum."""

    word: Float[Tensor, "vocab width"]
    position: Float[Tensor, "positions width"]
    token_type: Float[Tensor, "types width"]
    norm: Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One transformer layer."""

    qkv: Linear
    attention_output: Linear
    attention_norm: Norm
    feedforward_in: Linear
    feedforward_out: Linear
    output_norm: Norm


def linear_shapes(prefix: str, *, out: int, into: int) -> Shapes:
    """Names and shapes of a linear map."""
    return {f"{prefix}.weight": (out, into), f"{prefix}.bias": (out,)}


def norm_shapes(prefix: str, width: int) -> Shapes:
    """Names and shapes of a layer norm."""
    return {f"{prefix}.weight": (width,), f"{prefix}.bias": (width,)}


def linear_from(tensors: Mapping[str, Tensor], prefix: str) -> Linear:
    """Pick a linear map out of named tensors."""
    return Linear(weight=tensors[f"{prefix}.weight"], bias=tensors[f"{prefix}.bias"])


def norm_from(tensors: Mapping[str, Tensor], prefix: str) -> Norm:
    """Pick a layer norm out of named tensors."""
    return Norm(weight=tensors[f"{prefix}.weight"], bias=tensors[f"{prefix}.bias"])


def layer_from(tensors: Mapping[str, Tensor], layer: int) -> LayerWeights:
    """Pick one layer out of named tensors."""
    prefix = f"layers.{layer}"
    return LayerWeights(
        qkv=linear_from(tensors, f"{prefix}.qkv"),
        attention_output=linear_from(tensors, f"{prefix}.attention_output"),
        attention_norm=norm_from(tensors, f"{prefix}.attention_norm"),
        feedforward_in=linear_from(tensors, f"{prefix}.feedforward_in"),
        feedforward_out=linear_from(tensors, f"{prefix}.feedforward_out"),
        output_norm=norm_from(tensors, f"{prefix}.output_norm"),
    )


def embeddings_from(tensors: Mapping[str, Tensor]) -> EmbeddingWeights:
    """Pick the embeddings out of named tensors."""
    return EmbeddingWeights(
        word=tensors["embeddings.word"],
        position=tensors["embeddings.position"],
        token_type=tensors["embeddings.token_type"],
        norm=norm_from(tensors, "embeddings.norm"),
    )
