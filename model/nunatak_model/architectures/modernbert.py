"""ModernBERT: rotary positions, windows, norms before blocks, gated feed-forward blocks.

Warner et al. 2024, "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder"
(arXiv:2412.13663), sec. 2.1; rotary positions of Su et al. 2021 (arXiv:2104.09864), eq. 34; gated
units of Shazeer 2020 (arXiv:2002.05202), eq. 6.

The norm over the encoder's output counts as part of the last layer. A task that owns the last layer
(`topk`, `full`) therefore owns the norm, as fine-tuning in transformers would train it. All other
tasks run the frozen norm.

Axes: tokens = packed tokens of the rows, width = hidden width, three_width = query, key and value
of all heads side by side, half = half of a head's width.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from nunatak_contract.enums import HeadNorm, LinearMap, Pooling
from nunatak_contract.heads import DenseBlock
from nunatak_model.architectures.base import RunLayer
from nunatak_model.config import BackboneConfig, read_activation
from nunatak_model.errors import UnsupportedBackboneError
from nunatak_model.layer import MixedLayer, add_adapters, mixed_linear, mixed_norm, mixed_qkv
from nunatak_model.ops.attention import Attention
from nunatak_model.ops.device import flattened
from nunatak_model.ops.linear import activate, layer_norm
from nunatak_model.text.encoding import Encoding
from nunatak_model.weights import EmbeddingWeights, Shapes, linear_shapes, norm_shapes

MODEL_TYPES = ("modernbert",)
GLOBAL, LOCAL = "full_attention", "sliding_attention"
GLOBAL_EVERY, GLOBAL_BASE, LOCAL_BASE = 3, 160_000.0, 10_000.0
DEFAULTS: Mapping[str, object] = {
    "vocab_size": 50_368,
    "hidden_size": 768,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "intermediate_size": 1152,
    "max_position_embeddings": 8192,
    "pad_token_id": 50_283,
    "local_attention": 128,
    "norm_eps": 1e-5,
    "norm_bias": False,
    "hidden_activation": "gelu",
    "attention_bias": False,
    "mlp_bias": False,
    "classifier_activation": "gelu",
    "classifier_bias": False,
}
"""Defaults of transformers for missing fields, as the three numbers above."""

EMBEDDINGS = {
    "embeddings.word": "embeddings.tok_embeddings.weight",
    "embeddings.norm.weight": "embeddings.norm.weight",
    "embeddings.norm.bias": "embeddings.norm.bias",
}
LAYER = {
    "qkv": "attn.Wqkv",
    "attention_output": "attn.Wo",
    "attention_norm": "attn_norm",
    "feedforward_in": "mlp.Wi",
    "feedforward_out": "mlp.Wo",
    "output_norm": "mlp_norm",
}
HEAD_SOURCES: Mapping[str, str] = {"head.dense": "head.dense", "head.norm": "head.norm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernBertConfig(BackboneConfig):
    """The fields of ModernBERT in addition to the common fields."""

    is_local: tuple[bool, ...]
    """One value for each layer: whether a token sees only the tokens near it."""
    reach: int
    """Number of tokens to either side that a token of a local layer sees."""
    global_base: float
    """Base of the rotary wavelengths in global layers; `theta` in transformers."""
    local_base: float
    attention_bias: bool
    feedforward_bias: bool
    norm_bias: bool
    dense_block: DenseBlock
    """The dense block of transformers' heads of this checkpoint."""


def config_from(raw: dict[str, Any]) -> ModernBertConfig:
    """Read transformers' `config.json`, in its spelling before and since version 5.

    Raises:
        UnsupportedBackboneError: stretched rotary positions, or an unknown activation.
    """
    raw = {**DEFAULTS, **raw}
    num_layers: int = raw["num_hidden_layers"]
    bias: bool = raw["norm_bias"]
    return ModernBertConfig(
        model_type=raw["model_type"],
        vocab_size=raw["vocab_size"],
        hidden_width=raw["hidden_size"],
        num_layers=num_layers,
        num_heads=raw["num_attention_heads"],
        intermediate_width=raw["intermediate_size"],
        num_positions=raw["max_position_embeddings"],
        position_offset=0,
        num_token_types=1,
        padding_id=int(raw.get("pad_token_id") or 0),
        layer_norm_epsilon=raw["norm_eps"],
        activation=read_activation("hidden_activation", raw["hidden_activation"]),
        counts_positions_from_padding=False,
        is_local=_local_layers(raw, num_layers),
        reach=raw["local_attention"] // 2,
        global_base=_rotary_base(raw, GLOBAL, "global_rope_theta", GLOBAL_BASE),
        local_base=_rotary_base(raw, LOCAL, "local_rope_theta", LOCAL_BASE),
        attention_bias=raw["attention_bias"],
        feedforward_bias=raw["mlp_bias"],
        norm_bias=bias,
        dense_block=DenseBlock(
            activation=read_activation("classifier_activation", raw["classifier_activation"]),
            bias=raw["classifier_bias"],
            norm=HeadNorm.GAIN_AND_OFFSET if bias else HeadNorm.GAIN,
        ),
    )


def identity(config: ModernBertConfig) -> str:
    """Return the facts for a digest, in addition to names, shapes and bytes of the tensors."""
    return json.dumps(
        {
            "family": "modernbert",
            "num_heads": config.num_heads,
            "is_local": config.is_local,
            "reach": config.reach,
            "global_base": config.global_base,
            "local_base": config.local_base,
            "layer_norm_epsilon": config.layer_norm_epsilon,
            "activation": config.activation,
        },
        sort_keys=True,
    )


def source_names(target: str) -> tuple[str, ...]:
    """Name, without prefix, of the stored tensor that is our tensor `target`."""
    if target in EMBEDDINGS:
        return (EMBEDDINGS[target],)
    _, layer, part, kind = target.split(".")
    if part == "final_norm":
        return (f"final_norm.{kind}",)
    return (f"layers.{layer}.{LAYER[part]}.{kind}",)


def dense_block(config: ModernBertConfig, pooling: Pooling | None) -> DenseBlock:
    """The same block in every head, also in heads that read tokens."""
    return config.dense_block


def embedding_shapes(config: ModernBertConfig) -> Shapes:
    """Names and shapes of the embeddings."""
    width = config.hidden_width
    return {
        "embeddings.word": (config.vocab_size, width),
        **norm_shapes("embeddings.norm", width, bias=config.norm_bias),
    }


def layer_shapes(layer: int, config: ModernBertConfig) -> Shapes:
    """Names and shapes of one layer.

    The first layer lacks a norm; the last layer has one more norm.
    """
    prefix, width, inner = f"layers.{layer}", config.hidden_width, config.intermediate_width
    attention, feedforward = config.attention_bias, config.feedforward_bias
    shapes: Shapes = {
        **linear_shapes(f"{prefix}.qkv", out=3 * width, into=width, bias=attention),
        **linear_shapes(f"{prefix}.attention_output", out=width, into=width, bias=attention),
        **linear_shapes(f"{prefix}.feedforward_in", out=2 * inner, into=width, bias=feedforward),
        **linear_shapes(f"{prefix}.feedforward_out", out=width, into=inner, bias=feedforward),
        **norm_shapes(f"{prefix}.output_norm", width, bias=config.norm_bias),
    }
    if layer > 0:
        shapes |= norm_shapes(f"{prefix}.attention_norm", width, bias=config.norm_bias)
    if layer == config.num_layers - 1:
        shapes |= norm_shapes(f"{prefix}.final_norm", width, bias=config.norm_bias)
    return shapes


def embed(
    encodings: Sequence[Encoding], tables: EmbeddingWeights, config: ModernBertConfig
) -> Float[Tensor, "tokens width"]:
    """Word embeddings, normalised; the attention adds the positions."""
    ids = flattened((encoding.token_ids for encoding in encodings), tables.word.device)
    words = functional.embedding(ids, tables.word)
    return layer_norm(words, tables.norm, epsilon=config.layer_norm_epsilon)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RotaryAttention:
    """Attention over some rows, with each token's angle for the rotation of queries and keys."""

    attend: Attention
    cosine: Float[Tensor, "tokens 1 1 half"]
    sine: Float[Tensor, "tokens 1 1 half"]


def plan_layers(attention: Attention, config: ModernBertConfig) -> RunLayer:
    """Prepare attention for global and for local layers."""
    positions = attention.positions()
    global_attention = _rotary(attention, positions, config.global_base, config)
    nearby = attention.narrow(config.reach)
    local_attention = _rotary(nearby, positions, config.local_base, config)

    def run(
        hidden: Float[Tensor, "tokens width"], layer: MixedLayer, *, dropout: float
    ) -> Float[Tensor, "tokens width"]:
        rotary = local_attention if config.is_local[layer.index] else global_attention
        return _run_layer(hidden, layer, rotary, config, dropout=dropout)

    return run


def _run_layer(
    hidden: Float[Tensor, "tokens width"],
    layer: MixedLayer,
    attention: _RotaryAttention,
    config: ModernBertConfig,
    *,
    dropout: float,
) -> Float[Tensor, "tokens width"]:
    """Run one layer; each row's result equals the result of its task's own layer alone.

    Semantics:
        for row in rows:
            x = hidden[row];  W = frozen, plus the row's task's updates, or its own layer
            a = W.attention_output(attend(rotate(W.qkv(W.attention_norm(x)))))
            x = x + a + attention_adapter(a)
            value, gate = W.feedforward_in(W.output_norm(x)).halves
            f = W.feedforward_out(activation(value) * gate)
            out[row] = x + f + feedforward_adapter(f)
        without attention_norm in the first layer, with final_norm(out) in the last
    """
    epsilon = config.layer_norm_epsilon
    normed = mixed_norm(
        hidden,
        layer,
        lambda own: own.attention_norm,
        lambda own: own.attention_norm,
        epsilon=epsilon,
    )
    qkv = _rotate(mixed_qkv(normed, layer), attention, num_heads=config.num_heads)
    context = attention.attend(qkv, num_heads=config.num_heads, dropout=dropout)
    block = mixed_linear(
        context, layer, lambda weights: weights.attention_output, LinearMap.ATTENTION_OUTPUT
    )
    block = functional.dropout(block, dropout, training=dropout > 0.0)
    hidden = hidden + block
    add_adapters(
        hidden, block, layer, lambda own: own.attention_adapter, norm=None, epsilon=epsilon
    )

    normed = mixed_norm(
        hidden, layer, lambda own: own.output_norm, lambda own: own.output_norm, epsilon=epsilon
    )
    inner = mixed_linear(
        normed, layer, lambda weights: weights.feedforward_in, LinearMap.FEEDFORWARD_IN
    )
    value, gate = inner.chunk(2, dim=1)
    block = mixed_linear(
        activate(value, config.activation) * gate,
        layer,
        lambda weights: weights.feedforward_out,
        LinearMap.FEEDFORWARD_OUT,
    )
    block = functional.dropout(block, dropout, training=dropout > 0.0)
    hidden = hidden + block
    add_adapters(
        hidden, block, layer, lambda own: own.feedforward_adapter, norm=None, epsilon=epsilon
    )
    return mixed_norm(hidden, layer, lambda own: own.final_norm, None, epsilon=epsilon)


def _rotary(
    attention: Attention, positions: Int[Tensor, " tokens"], base: float, config: ModernBertConfig
) -> _RotaryAttention:
    width = config.head_width
    # The order of operations is transformers' order: far positions would magnify other roundings.
    frequencies = 1.0 / base ** (torch.arange(0, width, 2, device=positions.device) / width)
    angles = (positions.unsqueeze(1).float() * frequencies)[:, None, None, :]
    return _RotaryAttention(attend=attention, cosine=angles.cos(), sine=angles.sin())


def _rotate(
    qkv: Float[Tensor, "tokens three_width"], attention: _RotaryAttention, *, num_heads: int
) -> Float[Tensor, "tokens three_width"]:
    """Turn each pair (i, i + half) of a head's query and key by the token's angles, in float32."""
    query_key, value = qkv.tensor_split((qkv.shape[1] // 3 * 2,), dim=1)
    first, second = query_key.float().view(len(qkv), 2, num_heads, -1).chunk(2, dim=-1)
    turned = torch.cat(
        (
            first * attention.cosine - second * attention.sine,
            second * attention.cosine + first * attention.sine,
        ),
        dim=-1,
    )
    return torch.cat((turned.flatten(1).to(qkv.dtype), value), dim=1)


def _local_layers(raw: Mapping[str, Any], num_layers: int) -> tuple[bool, ...]:
    every: int = raw.get("global_attn_every_n_layers", GLOBAL_EVERY)
    kinds: list[str] = raw.get("layer_types") or [
        LOCAL if index % every else GLOBAL for index in range(num_layers)
    ]
    if len(kinds) != num_layers or not set(kinds) <= {GLOBAL, LOCAL}:
        raise UnsupportedBackboneError(
            f"layer_types must be {num_layers} of {GLOBAL} and {LOCAL}, got {kinds}"
        )
    return tuple(kind == LOCAL for kind in kinds)


def _rotary_base(raw: Mapping[str, Any], kind: str, old_name: str, default: float) -> float:
    by_kind: Mapping[str, Mapping[str, Any]] = raw.get("rope_parameters") or {}
    settings = by_kind.get(kind) or {}
    base = settings.get("rope_theta", raw.get(old_name, default))
    if settings.get("rope_type", "default") != "default" or raw.get("rope_scaling"):
        raise UnsupportedBackboneError(
            f"expected rotary positions of rope_type 'default', got {settings}, "
            f"rope_scaling={raw.get('rope_scaling')}"
        )
    if not isinstance(base, int | float) or base <= 0:
        raise UnsupportedBackboneError(f"{old_name} must be a positive number, got {base!r}")
    return float(base)
