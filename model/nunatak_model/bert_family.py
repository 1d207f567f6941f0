"""The BERT family as transformers stores it: configuration fields and tensor names.

BERT, RoBERTa, XLM-R and CamemBERT differ, to us, in how positions are counted and in token types.
"""

import json
from typing import Any

from nunatak_model.config import Activation, BackboneConfig
from nunatak_model.errors import UnsupportedBackboneError

POSITIONS_FROM_PADDING = {"bert": False, "roberta": True, "xlm-roberta": True, "camembert": True}
"""Supported values of `model_type`, and whether positions start after the padding id."""

EMBEDDINGS = {
    "embeddings.word": "embeddings.word_embeddings.weight",
    "embeddings.position": "embeddings.position_embeddings.weight",
    "embeddings.token_type": "embeddings.token_type_embeddings.weight",
    "embeddings.norm.weight": "embeddings.LayerNorm.weight",
    "embeddings.norm.bias": "embeddings.LayerNorm.bias",
}
LAYER = {
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention_output": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "feedforward_in": ("intermediate.dense",),
    "feedforward_out": ("output.dense",),
    "output_norm": ("output.LayerNorm",),
}


def is_supported(raw: dict[str, Any]) -> bool:
    """Whether a `config.json` describes a member of the family."""
    return raw.get("model_type") in POSITIONS_FROM_PADDING


def config_from(raw: dict[str, Any]) -> BackboneConfig:
    """Read transformers' `config.json` of a supported model.

    Raises:
        UnsupportedBackboneError: a variant whose layers are computed differently.
    """
    if raw.get("position_embedding_type", "absolute") != "absolute" or raw.get("is_decoder"):
        raise UnsupportedBackboneError(
            "expected an encoder with absolute positions, got "
            f"position_embedding_type={raw.get('position_embedding_type')!r}, "
            f"is_decoder={raw.get('is_decoder', False)}"
        )
    padding_id = int(raw.get("pad_token_id") or 0)
    from_padding = POSITIONS_FROM_PADDING[raw["model_type"]]
    return BackboneConfig(
        vocab_size=raw["vocab_size"],
        hidden_width=raw["hidden_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=raw["num_attention_heads"],
        intermediate_width=raw["intermediate_size"],
        num_positions=raw["max_position_embeddings"],
        position_offset=padding_id + 1 if from_padding else 0,
        num_token_types=raw["type_vocab_size"],
        padding_id=padding_id,
        layer_norm_epsilon=raw["layer_norm_eps"],
        activation=_activation(raw["hidden_act"]),
        counts_positions_from_padding=from_padding,
    )


def identity(config: BackboneConfig) -> str:
    """What a digest must read beside names, shapes and bytes of the tensors.

    A fixed text: a field added to `BackboneConfig` must not change the digests of old backbones.
    """
    return json.dumps(
        {
            "family": "bert",
            "num_heads": config.num_heads,
            "position_offset": config.position_offset,
            "padding_id": config.padding_id,
            "counts_positions_from_padding": config.counts_positions_from_padding,
            "layer_norm_epsilon": config.layer_norm_epsilon,
            "activation": config.activation,
        },
        sort_keys=True,
    )


def source_names(target: str) -> tuple[str, ...]:
    """Names, without prefix, of the stored tensors that make up our tensor `target`."""
    if target in EMBEDDINGS:
        return (EMBEDDINGS[target],)
    _, layer, part, kind = target.split(".")
    return tuple(f"encoder.layer.{layer}.{name}.{kind}" for name in LAYER[part])


def _activation(name: str) -> Activation:
    try:
        return Activation(name)
    except ValueError as error:
        raise UnsupportedBackboneError(
            f"hidden_act must be one of {', '.join(Activation)}, got {name!r}"
        ) from error
