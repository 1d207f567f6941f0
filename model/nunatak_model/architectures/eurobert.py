"""EuroBERT: Llama's layers, in which every token sees all others.

Boizard et al. 2025, "EuroBERT: Scaling Multilingual Encoders for European Languages"
(arXiv:2503.05500), sec. 2.1.

Axes: tokens = packed tokens of the rows, width = hidden width.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from nunatak_contract.enums import Activation, HeadNorm, Pooling
from nunatak_contract.heads import DenseBlock
from nunatak_model.architectures import decoder
from nunatak_model.architectures.base import RunLayer
from nunatak_model.architectures.decoder import DecoderConfig, layer_facts, read_fields
from nunatak_model.architectures.rotary import rotary, run_prenorm_layer
from nunatak_model.ops.attention import Attention
from nunatak_model.ops.linear import rms_norm

MODEL_TYPES = ("eurobert",)
DEFAULTS: Mapping[str, object] = {
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
}
HEAD_SOURCES: Mapping[str, str] = {"head.dense": "dense"}
embed, embedding_shapes = decoder.embed, decoder.embedding_shapes
layer_shapes, source_names = decoder.layer_shapes, decoder.source_names
identity = partial(layer_facts, "eurobert")
BLOCK = DenseBlock(activation=Activation.GELU, bias=True, norm=HeadNorm.NONE)


def config_from(raw: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(**read_fields(raw, DEFAULTS), has_head_norms=False)


def dense_block(config: DecoderConfig, pooling: Pooling | None) -> DenseBlock | None:
    del config
    return None if pooling is None else BLOCK


def plan_layers(attention: Attention, config: DecoderConfig) -> RunLayer:
    attend = rotary(attention, attention.positions(), config.rope, config)
    return partial(run_prenorm_layer, attention=attend, config=config, norm=rms_norm)
