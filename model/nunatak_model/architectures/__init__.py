"""The supported architectures, by families, and the closed table of them.

A new architecture is an `Architecture` in the file of its family, or in one of its own, and a line
in `ARCHITECTURES`.
"""

from collections.abc import Mapping
from typing import Any

from nunatak_model.architectures import bert, deberta, decoder, modernbert, mpnet, nomic
from nunatak_model.architectures.base import Architecture, RunLayer
from nunatak_model.config import BackboneConfig
from nunatak_model.errors import CorruptBackboneError, UnsupportedBackboneError
from nunatak_model.weights import Shapes

ARCHITECTURES: Mapping[str, Architecture[Any]] = {
    **dict.fromkeys(bert.MODEL_TYPES, bert.BERT),
    "distilbert": bert.DISTILBERT,
    "electra": bert.ELECTRA,
    "deberta-v2": deberta.DEBERTA,
    "mpnet": mpnet.MPNET,
    "modernbert": modernbert.MODERNBERT,
    **dict.fromkeys(decoder.MODEL_TYPES, decoder.DECODER),
    "eurobert": decoder.EUROBERT,
    nomic.NOMIC: nomic.NOMIC_BERT,
    nomic.GTE: nomic.GTE_BERT,
}
"""By `model_type`."""
POST_NORM = tuple(name for name, it in ARCHITECTURES.items() if it.has_late_norms)
SIZES: Mapping[str, tuple[int, int]] = {
    "num_layers": (1, 1024),
    "hidden_width": (1, 2**20),
    "intermediate_width": (1, 2**22),
    "num_heads": (1, 2**12),
    "num_key_heads": (1, 2**12),
    "head_width": (1, 2**20),
    "vocab_size": (1, 2**24),
    "num_positions": (1, 2**30),
    "num_token_types": (0, 2**10),
    "position_offset": (0, 2**24),
    "padding_id": (-1, 2**24),
}
__all__ = [
    "ARCHITECTURES",
    "POST_NORM",
    "Architecture",
    "RunLayer",
    "architecture_of",
    "config_from",
    "encoder_shapes",
    "layer_shapes",
    "source_rows",
]


def architecture_of(config: BackboneConfig) -> Architecture[Any]:
    return ARCHITECTURES[config.model_type]


def config_from(raw: dict[str, Any]) -> BackboneConfig:
    architecture = ARCHITECTURES.get(str(raw.get("model_type")))
    if raw.get("model_type") == "albert":
        raise UnsupportedBackboneError(
            "an ALBERT runs one layer many times, so no task could own or adapt a single layer; "
            f"take a model_type out of {', '.join(ARCHITECTURES)}"
        )
    if architecture is None:
        raise UnsupportedBackboneError(
            f"model_type must be one of {', '.join(ARCHITECTURES)}, got {raw.get('model_type')!r}; "
            "take a checkpoint of one of them"
        )
    if raw.get("quantization_config"):
        raise UnsupportedBackboneError(
            "expected weights in floating point, got a checkpoint with a quantization_config; take "
            "the original, and quantize it here with +int8"
        )
    try:
        config = architecture.config_from(raw)
        _check_sizes(config)
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        raise CorruptBackboneError(f"config.json does not read: {error!r}") from error
    # transformers gives this setting to one of its kernels of attention, whatever the architecture.
    if raw.get("is_causal") not in (None, config.is_causal):
        seen = "earlier tokens alone" if config.is_causal else "all tokens"
        raise UnsupportedBackboneError(
            f"expected a {config.model_type} in which tokens see {seen}, got "
            f"is_causal={raw['is_causal']!r}"
        )
    return config


def _check_sizes(config: BackboneConfig) -> None:
    """Raise ValueError before anything is made of a size that no model has."""
    for name, (least, most) in SIZES.items():
        size: object = getattr(config, name)
        if type(size) is not int or not least <= size <= most:
            raise ValueError(f"{name} must be a number from {least} to {most}, got {size!r:.40}")
    if not 0 < config.layer_norm_epsilon < 1:
        raise ValueError(f"the epsilon of norms must be small, got {config.layer_norm_epsilon!r}")


def layer_shapes(layer: int, config: BackboneConfig) -> Shapes:
    return architecture_of(config).layer_shapes(layer, config)


def encoder_shapes(config: BackboneConfig) -> Shapes:
    """Names and shapes in the order in which digests read them."""
    architecture = architecture_of(config)
    shapes = dict(architecture.embedding_shapes(config))
    for layer in range(config.num_layers):
        shapes |= architecture.layer_shapes(layer, config)
    return shapes


def source_rows(target: str, rows: int, config: BackboneConfig) -> list[int]:
    """Rows of each stored tensor in our tensor `target`, which has this many rows."""
    num_sources = len(architecture_of(config).source_names(target))
    if num_sources == len(config.qkv_widths):
        return list(config.qkv_widths)
    return [rows // num_sources] * num_sources
