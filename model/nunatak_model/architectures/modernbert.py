"""ModernBERT: rotary positions, windows, norms before blocks, gated feed-forward blocks.

Warner et al. 2024, "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder"
(arXiv:2412.13663), sec. 2.1.

Axes: tokens = packed tokens of the rows, width = hidden width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor

from nunatak_contract.enums import HeadNorm, Pooling
from nunatak_contract.heads import DenseBlock
from nunatak_model.architectures import bert
from nunatak_model.architectures.base import Architecture, RunLayer
from nunatak_model.architectures.rotary import (
    Rope,
    RotaryAttention,
    read_rope,
    rotary,
    run_prenorm_layer,
)
from nunatak_model.config import BackboneConfig, read_activation, read_sizes
from nunatak_model.errors import UnsupportedBackboneError
from nunatak_model.layer import MixedLayer
from nunatak_model.ops.attention import Attention
from nunatak_model.ops.linear import layer_norm
from nunatak_model.weights import Shapes, norm_shapes

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
    "qkv": ("attn.Wqkv",),
    "attention_output": ("attn.Wo",),
    "attention_norm": ("attn_norm",),
    "feedforward_in": ("mlp.Wi",),
    "feedforward_out": ("mlp.Wo",),
    "output_norm": ("mlp_norm",),
    "final_norm": ("final_norm",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernBertConfig(BackboneConfig):
    """ModernBERT's own fields."""

    is_local: tuple[bool, ...]
    """For each layer, whether a token sees only the tokens near it."""
    reach: int
    global_rope: Rope
    local_rope: Rope
    attention_bias: bool
    feedforward_bias: bool
    norm_bias: bool
    dense_block: DenseBlock


def config_from(raw: dict[str, Any]) -> ModernBertConfig:
    raw = {**DEFAULTS, **raw}
    bias: bool = raw["norm_bias"]
    # transformers reads `sliding_window` as half of `local_attention`, and lets it decide.
    window = raw.get("sliding_window")
    return ModernBertConfig(
        **read_sizes(raw),
        padding_id=int(raw.get("pad_token_id") or 0),
        layer_norm_epsilon=raw["norm_eps"],
        activation=read_activation("hidden_activation", raw["hidden_activation"]),
        is_local=_local_layers(raw, raw["num_hidden_layers"]),
        reach=raw["local_attention"] // 2 if window is None else window,
        global_rope=_rope(raw, GLOBAL, "global_rope_theta", GLOBAL_BASE),
        local_rope=_rope(raw, LOCAL, "local_rope_theta", LOCAL_BASE),
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
    """Plain rotary positions add no fact, so that old backbones keep their digests."""
    ropes = {"global_rope": config.global_rope, "local_rope": config.local_rope}
    return bert.facts_text(
        "modernbert",
        config,
        is_local=config.is_local,
        reach=config.reach,
        global_base=config.global_rope.rope_theta,
        local_base=config.local_rope.rope_theta,
        layer_norm_epsilon=config.layer_norm_epsilon,
        **{name: rope.facts() for name, rope in ropes.items() if type(rope) is not Rope},
    )


def dense_block(config: ModernBertConfig, pooling: Pooling | None) -> DenseBlock:
    """The same block in every head, also in heads that read tokens."""
    return config.dense_block


def embedding_shapes(config: ModernBertConfig) -> Shapes:
    width = config.hidden_width
    return {
        "embeddings.word": (config.vocab_size, width),
        **norm_shapes("embeddings.norm", width, bias=config.norm_bias),
    }


def layer_shapes(layer: int, config: ModernBertConfig) -> Shapes:
    """The first layer lacks a norm; the last layer has one more norm."""
    attention, feedforward, norm = config.attention_bias, config.feedforward_bias, config.norm_bias
    parts = {"qkv": attention, "attention_output": attention}
    parts |= {"feedforward_in": feedforward, "feedforward_out": feedforward, "output_norm": norm}
    if layer > 0:
        parts["attention_norm"] = norm
    if layer == config.num_layers - 1:
        parts["final_norm"] = norm
    return bert.shapes_of(parts, layer, config, is_gated=True)


def plan_layers(attention: Attention, config: ModernBertConfig) -> RunLayer:
    positions = attention.positions()
    everywhere = rotary(attention, positions, config.global_rope, config)
    nearby = rotary(attention.narrow(config.reach), positions, config.local_rope, config)
    by_layer = [nearby if is_local else everywhere for is_local in config.is_local]
    return partial(_run_layer, by_layer)


def _run_layer(
    by_layer: Sequence[RotaryAttention], hidden: Float[Tensor, "tokens width"], layer: MixedLayer
) -> Float[Tensor, "read width"]:
    return run_prenorm_layer(hidden, layer, attend=by_layer[layer.index], norm=layer_norm)


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


def _rope(raw: Mapping[str, Any], kind: str, old_name: str, default: float) -> Rope:
    by_kind: Mapping[str, Any] = raw.get("rope_parameters") or {}
    stray = {name: it for name, it in by_kind.items() if name not in {GLOBAL, LOCAL}}
    if stray.get("rope_type", "default") != "default":
        raise UnsupportedBackboneError(
            f"expected rope_parameters for each of {GLOBAL} and {LOCAL}, got {stray}, which "
            "transformers does not read"
        )
    scaling: Mapping[str, Any] = raw.get("rope_scaling") or {}
    if scaling and "rope_type" not in scaling:
        raise UnsupportedBackboneError(
            f"expected a rope_type in rope_scaling, got {dict(scaling)}; transformers "
            "ignores the field type there; write the type of the trained model as rope_type"
        )
    own: Mapping[str, Any] = by_kind.get(kind) or {}
    settings = {**own, **scaling}
    if settings.get("truncate", True) is not True:
        raise UnsupportedBackboneError(
            "expected truncate true in the rotary positions of a modernbert, whose false "
            f"transformers does not read, got {settings}"
        )
    theta = settings.get("rope_theta", raw.get(old_name, default))
    return read_rope(settings, theta=theta, num_positions=raw["max_position_embeddings"])


MODERNBERT = Architecture(
    embeddings=EMBEDDINGS,
    layers="layers",
    parts=LAYER,
    head_sources={"head.dense": "head.dense", "head.norm": "head.norm"},
    config_from=config_from,
    identity=identity,
    dense_block=dense_block,
    embedding_shapes=embedding_shapes,
    layer_shapes=layer_shapes,
    embed=bert.embed,
    plan_layers=plan_layers,
)
