"""NomicBERT and GTE: BERT's layers with rotary positions and gated feed-forward blocks.

Nussbaum et al. 2024, "Nomic Embed" (arXiv:2402.01613), sec. 3.1; Zhang et al. 2024, "mGTE"
(arXiv:2407.19669), sec. 2.1. The norms follow the blocks, as in BERT. GTE has biases, and stores
the two halves of the first feed-forward map in the other order.

The names of tensors are those of the published checkpoints, which transformers writes, too.

Axes: tokens = packed tokens of the rows, width = hidden width.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from nunatak_model.architectures import bert
from nunatak_model.architectures.base import Architecture, RunLayer
from nunatak_model.architectures.rotary import Rope, read_flat_rope, rotary, run_gated_block
from nunatak_model.config import BackboneConfig, read_activation, read_sizes
from nunatak_model.errors import UnsupportedBackboneError
from nunatak_model.ops.attention import Attention
from nunatak_model.weights import Shapes, norm_shapes

NOMIC, GTE = "nomic_bert", "gte"
SHARED_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
}
DEFAULTS: Mapping[str, Mapping[str, object]] = {
    NOMIC: {
        "vocab_size": 30_528,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "type_vocab_size": 2,
        "pad_token_id": 0,
        "head_dim": None,
    },
    GTE: {
        "vocab_size": 250_048,
        "hidden_act": "gelu",
        "max_position_embeddings": 8192,
        "type_vocab_size": 1,
        "pad_token_id": 1,
        "head_dim": None,
    },
}
THETAS = {NOMIC: 1000.0, GTE: 160_000.0}
OLD_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "layer_norm_epsilon": "layer_norm_eps",
}
"""Names in the first configurations of NomicBERT, which transformers does not read."""
OLD_SETTINGS: Mapping[str, object] = {
    "activation_function": "swiglu",
    "prenorm": False,
    "use_rms_norm": False,
    "parallel_block": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_scaling_factor": None,
    "num_experts": 0,
    **dict.fromkeys(("logn_attention_scale", "logn_attention_clip1"), False),
    "layer_norm_type": "layer_norm",
}
"""Other settings there and in the first GTE, with the values by which transformers computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NomicConfig(BackboneConfig):
    """The own fields of NomicBERT and GTE."""

    rope: Rope
    has_token_types: bool

    @property
    def is_gte(self) -> bool:
        return self.model_type == GTE


def config_from(raw: dict[str, Any]) -> NomicConfig:
    model_type = raw["model_type"]
    raw = {**SHARED_DEFAULTS, **DEFAULTS[model_type], **raw}
    rope = read_flat_rope(raw, default_theta=THETAS[model_type])
    _check_old_settings(raw, rope)
    width, num_heads = raw["hidden_size"], raw["num_attention_heads"]
    if raw["head_dim"] not in {None, width // num_heads}:
        raise UnsupportedBackboneError(
            f"expected heads of width {width // num_heads}, got head_dim={raw['head_dim']}"
        )
    return NomicConfig(
        **read_sizes(raw),
        num_token_types=max(1, raw["type_vocab_size"]),
        padding_id=int(raw["pad_token_id"] or 0),
        layer_norm_epsilon=raw["layer_norm_eps"],
        activation=read_activation("hidden_act", raw["hidden_act"]),
        reach=None,
        rope=rope,
        has_token_types=raw["type_vocab_size"] > 0,
    )


def identity(config: NomicConfig) -> str:
    facts = {"rope": config.rope.facts(), "layer_norm_epsilon": config.layer_norm_epsilon}
    return bert.facts_text(config.model_type, config, **facts)


def embedding_shapes(config: NomicConfig) -> Shapes:
    width = config.hidden_width
    shapes: Shapes = {"embeddings.word": (config.vocab_size, width)}
    if config.has_token_types:
        shapes["embeddings.token_type"] = (config.num_token_types, width)
    return {**shapes, **norm_shapes("embeddings.norm", width)}


def layer_shapes(layer: int, config: NomicConfig) -> Shapes:
    maps = ("qkv", "attention_output", "feedforward_out")
    biased = {**dict.fromkeys(maps, config.is_gte), "feedforward_in": False}
    parts = {part: biased.get(part, True) for part in bert.LAYER}
    return bert.shapes_of(parts, layer, config, is_gated=True)


def plan_layers(attention: Attention, config: NomicConfig) -> RunLayer:
    turned = rotary(attention, attention.positions(), config.rope, config)
    return partial(
        bert.run_layer,
        attend=turned,
        feed_forward=partial(run_gated_block, is_reversed=config.is_gte),
        config=config,
    )


def _check_old_settings(raw: Mapping[str, Any], rope: Rope) -> None:
    used: dict[str, object] = {old: raw[new] for old, new in OLD_NAMES.items()}
    used |= {**OLD_SETTINGS, "rotary_emb_base": rope.rope_theta}
    other = {name: raw[name] for name, it in used.items() if name in raw and raw[name] != it}
    if other:
        raise UnsupportedBackboneError(
            f"config.json sets {', '.join(sorted(other))}, which transformers does not read, got "
            f"{other}; load the model with a current transformers and save it again"
        )


NOMIC_BERT = Architecture(
    embeddings={
        "embeddings.word": "embeddings.word_embeddings.weight",
        "embeddings.token_type": "embeddings.token_type_embeddings.weight",
        "embeddings.norm.weight": "emb_ln.weight",
        "embeddings.norm.bias": "emb_ln.bias",
    },
    layers="encoder.layers",
    parts={
        "qkv": ("attn.Wqkv",),
        "attention_output": ("attn.out_proj",),
        "attention_norm": ("norm1",),
        "feedforward_in": ("mlp.fc12", "mlp.fc11"),
        "feedforward_out": ("mlp.fc2",),
        "output_norm": ("norm2",),
    },
    head_sources=bert.BERT.head_sources,
    has_late_norms=True,
    config_from=config_from,
    identity=identity,
    dense_block=bert.BERT.dense_block,
    embedding_shapes=embedding_shapes,
    layer_shapes=layer_shapes,
    embed=bert.embed,
    plan_layers=plan_layers,
)
GTE_BERT = replace(
    NOMIC_BERT,
    embeddings=bert.EMBEDDINGS,
    layers="encoder.layer",
    parts={
        "qkv": ("attention.qkv_proj",),
        "attention_output": ("attention.o_proj",),
        "attention_norm": ("attn_ln",),
        "feedforward_in": ("mlp.up_gate_proj",),
        "feedforward_out": ("mlp.down_proj",),
        "output_norm": ("mlp_ln",),
    },
)
