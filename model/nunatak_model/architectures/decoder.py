"""Decoders: Llama and Qwen3, as embedding models, rerankers, reward models and guards; EuroBERT.

Touvron et al. 2023 (arXiv:2302.13971), sec. 2.2; Yang et al. 2025, "Qwen3 Technical Report"
(arXiv:2505.09388), sec. 2. A token sees only itself and earlier tokens, so heads read the last
token. Groups of query heads share heads of keys and values. Norms have no offset and subtract no
mean. Qwen3 also has norms for the heads of queries and keys.

EuroBERT (Boizard et al. 2025, arXiv:2503.05500, sec. 2.1) has Llama's layers, in which every token
sees all others.

The embeddings are word embeddings alone. The map from states to words (`lm_head`) is no part of the
encoder.

Axes: tokens = packed tokens of the rows, width = hidden width.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from nunatak_contract.enums import Activation, HeadNorm, Pooling
from nunatak_contract.heads import DenseBlock
from nunatak_model.architectures import bert
from nunatak_model.architectures.base import Architecture, RunLayer
from nunatak_model.architectures.rotary import Rope, read_flat_rope, rotary, run_prenorm_layer
from nunatak_model.config import BackboneConfig, read_activation, read_sizes
from nunatak_model.errors import UnsupportedBackboneError
from nunatak_model.ops.attention import Attention
from nunatak_model.ops.linear import rms_norm
from nunatak_model.weights import Shapes

MODEL_TYPES = ("llama", "qwen3")
THETA = 10_000.0
DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "llama": {
        "vocab_size": 32_000,
        "intermediate_size": 11_008,
        "max_position_embeddings": 2048,
        "num_key_value_heads": None,
        "head_dim": None,
    },
    "qwen3": {
        "vocab_size": 151_936,
        "intermediate_size": 22_016,
        "max_position_embeddings": 32_768,
        "num_key_value_heads": 32,
        "head_dim": 128,
    },
    "eurobert": {
        "vocab_size": 128_256,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": None,
        "head_dim": None,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "pad_token_id": 128_001,
    },
}
SHARED_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "mlp_bias": False,
}
WHOLE, SLIDING = "full_attention", "sliding_attention"
WINDOW, FULL_LAYERS = 4096, 28
"""Qwen3's defaults of `sliding_window` and `max_window_layers`."""

EMBEDDINGS = {"embeddings.word": "embed_tokens.weight"}
LAYER = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "query_norm": ("self_attn.q_norm",),
    "key_norm": ("self_attn.k_norm",),
    "attention_output": ("self_attn.o_proj",),
    "attention_norm": ("input_layernorm",),
    "feedforward_in": ("mlp.gate_proj", "mlp.up_proj"),
    "feedforward_out": ("mlp.down_proj",),
    "output_norm": ("post_attention_layernorm",),
    "final_norm": ("norm",),
}
EUROBERT_BLOCK = DenseBlock(activation=Activation.GELU, bias=True, norm=HeadNorm.NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig(BackboneConfig):
    """The decoders' own fields."""

    rope: Rope
    attention_bias: bool
    feedforward_bias: bool
    has_head_norms: bool
    """As in Qwen3."""


def config_from(raw: dict[str, Any]) -> DecoderConfig:
    fields, is_qwen = _read_fields(raw), raw["model_type"] == "qwen3"
    if is_qwen:
        _check_windows(raw, fields["num_layers"])
        # Qwen3 has no setting for these biases.
        fields["feedforward_bias"] = False
    return DecoderConfig(**fields, is_causal=True, has_score_bias=False, has_head_norms=is_qwen)


def _read_eurobert(raw: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(**_read_fields(raw), has_head_norms=False)


def _read_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    raw = {**SHARED_DEFAULTS, **DEFAULTS[raw["model_type"]], **raw}
    if "AutoModel" in (raw.get("auto_map") or {}):
        raise UnsupportedBackboneError(
            f"expected transformers' own {raw['model_type']}, got a model with code of its own "
            f"(auto_map names {raw['auto_map']['AutoModel']!r}), which is never run here and may "
            "compute otherwise; remove auto_map in a copy of the folder if it does not"
        )
    num_heads: int = raw["num_attention_heads"]
    num_shared: int = raw["num_key_value_heads"] or num_heads
    if num_heads % num_shared:
        raise UnsupportedBackboneError(
            f"num_attention_heads must be a multiple of num_key_value_heads, got {num_heads} and "
            f"{num_shared}"
        )
    head_width: int = raw["head_dim"] or raw["hidden_size"] // num_heads
    if head_width % 2:
        raise UnsupportedBackboneError(
            f"rotary positions need heads of an even width, got head_dim={head_width}"
        )
    padding_id: int | None = raw.get("pad_token_id")
    return {
        **read_sizes(raw),
        "num_shared_heads": num_shared,
        "own_head_width": head_width,
        "padding_id": -1 if padding_id is None else padding_id,
        "layer_norm_epsilon": raw["rms_norm_eps"],
        "activation": read_activation("hidden_act", raw["hidden_act"]),
        "reach": None,
        "rope": read_flat_rope(raw, default_theta=THETA),
        "attention_bias": raw["attention_bias"],
        "feedforward_bias": raw["mlp_bias"],
    }


def _check_windows(raw: Mapping[str, Any], num_layers: int) -> None:
    window = raw.get("sliding_window", WINDOW) if raw.get("use_sliding_window") else None
    full_layers: int = raw.get("max_window_layers", FULL_LAYERS)
    kinds: list[str] = raw.get("layer_types") or [
        SLIDING if window is not None and index >= full_layers else WHOLE
        for index in range(num_layers)
    ]
    if set(kinds) != {WHOLE}:
        raise UnsupportedBackboneError(
            f"expected a qwen3 with {WHOLE} in all layers, got "
            f"use_sliding_window={raw.get('use_sliding_window', False)} and layers of "
            f"{', '.join(sorted(set(kinds)))}"
        )


def _identity(family: str, config: DecoderConfig) -> str:
    """The padding token is left out, because only heads read it."""
    return bert.facts_text(
        family,
        config,
        num_key_heads=config.num_key_heads,
        rope=config.rope.facts(),
        norm_epsilon=config.layer_norm_epsilon,
    )


def _dense_block(config: DecoderConfig, pooling: Pooling | None) -> DenseBlock | None:
    return None if config.is_causal or pooling is None else EUROBERT_BLOCK


def embedding_shapes(config: DecoderConfig) -> Shapes:
    return {"embeddings.word": (config.vocab_size, config.hidden_width)}


def layer_shapes(layer: int, config: DecoderConfig) -> Shapes:
    attention, feedforward = config.attention_bias, config.feedforward_bias
    parts = {"qkv": attention, "attention_output": attention}
    parts |= {"feedforward_in": feedforward, "feedforward_out": feedforward}
    if config.has_head_norms:
        parts |= {"query_norm": False, "key_norm": False}
    parts |= {"attention_norm": False, "output_norm": False}
    if layer == config.num_layers - 1:
        parts["final_norm"] = False
    return bert.shapes_of(parts, layer, config, is_gated=True)


def plan_layers(attention: Attention, config: DecoderConfig) -> RunLayer:
    seen = attention.causal() if config.is_causal else attention
    attend = rotary(seen, attention.positions(), config.rope, config)
    return partial(run_prenorm_layer, attend=attend, norm=rms_norm)


DECODER = Architecture(
    embeddings=EMBEDDINGS,
    layers="layers",
    parts=LAYER,
    head_sources={},
    config_from=config_from,
    identity=partial(_identity, "decoder"),
    dense_block=_dense_block,
    embedding_shapes=embedding_shapes,
    layer_shapes=layer_shapes,
    embed=bert.sum_embeddings,
    plan_layers=plan_layers,
)
EUROBERT = replace(
    DECODER,
    head_sources={"head.dense": "dense"},
    config_from=_read_eurobert,
    identity=partial(_identity, "eurobert"),
)
