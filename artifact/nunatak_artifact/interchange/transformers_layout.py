"""Names of classes, configuration fields and tensors in transformers' encoders, with a head.

Import and export share this description, for whole models and for adapters. The classes of
RoBERTa, XLM-R and CamemBERT differ in their names only. ModernBERT has one head for all kinds, and
reads sequences by their mean or their first token. The dense block of a head is the architecture's.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from pydantic import JsonValue
from torch import Tensor

from nunatak_contract.enums import HeadKind, LinearMap, Pooling
from nunatak_contract.heads import TANH_BLOCK
from nunatak_model import BackboneConfig, HeadSpec
from nunatak_model.architectures import (
    architecture_of,
    encoder_shapes,
    eurobert,
    source_rows,
)
from nunatak_model.architectures.deberta import DebertaConfig
from nunatak_model.architectures.decoder import DecoderConfig
from nunatak_model.architectures.modernbert import GLOBAL, LOCAL, ModernBertConfig
from nunatak_model.architectures.nomic import NomicConfig
from nunatak_model.config import QKV
from nunatak_model.heads import head_shapes
from nunatak_model.methods.base import map_widths

CLASS_SUFFIXES: Final[Mapping[str, HeadKind]] = {
    "ForSequenceClassification": HeadKind.SEQUENCE_CLASSIFICATION,
    "ForTokenClassification": HeadKind.TOKEN_CLASSIFICATION,
    "ForQuestionAnswering": HeadKind.QUESTION_ANSWERING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Names that a family of classes shares. Names of modules come without `.weight`."""

    class_prefix: str
    encoder: str
    dense: str | None
    """The dense layer of the sequence classification head; in ModernBERT, of every head.

    The layer is part of the module `classifier`, or a module of its own, which a checkpoint of the
    encoder may hold too. None in decoders.
    """
    sequence_output: str
    token_output: str = "classifier"  # noqa: S105 - a name, no secret
    answer_output: str | None = "qa_outputs"
    """None if no class answers questions."""
    answer_encoder: str | None = None
    """The encoder's name in the class that answers questions, if it has another there."""
    norm: str | None = None
    """The norm after the dense layer, if there is one."""

    def encoder_of(self, kind: HeadKind) -> str:
        """The encoder's name in the class of this kind."""
        if kind is HeadKind.QUESTION_ANSWERING and self.answer_encoder is not None:
            return self.answer_encoder
        return self.encoder

    @property
    def own_dense(self) -> str | None:
        """The module that holds the dense layer, if the layer is no part of `classifier`."""
        if self.dense is None or self.dense.startswith(f"{CLASSIFIER}."):
            return None
        return self.dense.removesuffix(".dense")

    @property
    def has_dense_tokens(self) -> bool:
        """Whether heads that read tokens have the dense layer too."""
        return self.norm is not None


CLASSIFIER: Final = "classifier"


def _roberta(class_prefix: str, encoder: str = "roberta") -> Family:
    return Family(
        class_prefix=class_prefix,
        encoder=encoder,
        dense="classifier.dense",
        sequence_output="classifier.out_proj",
    )


def _decoder(class_prefix: str) -> Family:
    return Family(
        class_prefix=class_prefix,
        encoder="model",
        answer_encoder="transformer",
        dense=None,
        sequence_output="score",
        token_output="score",  # noqa: S106 - a name, no secret
    )


def _nomic(class_prefix: str, encoder: str) -> Family:
    return Family(
        class_prefix=class_prefix,
        encoder=encoder,
        dense=f"{encoder}.pooler.dense",
        sequence_output="classifier",
        answer_output=None,
    )


FAMILIES: Final[Mapping[str, Family]] = {
    "bert": Family(
        class_prefix="Bert",
        encoder="bert",
        dense="bert.pooler.dense",
        sequence_output="classifier",
    ),
    "roberta": _roberta("Roberta"),
    "xlm-roberta": _roberta("XLMRoberta"),
    "camembert": _roberta("Camembert"),
    "distilbert": Family(
        class_prefix="DistilBert",
        encoder="distilbert",
        dense="pre_classifier",
        sequence_output="classifier",
    ),
    "electra": _roberta("Electra", "electra"),
    "deberta-v2": Family(
        class_prefix="DebertaV2",
        encoder="deberta",
        dense="pooler.dense",
        sequence_output="classifier",
    ),
    "mpnet": _roberta("MPNet", "mpnet"),
    "modernbert": Family(
        class_prefix="ModernBert",
        encoder="model",
        dense="head.dense",
        norm="head.norm",
        sequence_output="classifier",
        answer_output="classifier",
    ),
    "llama": _decoder("Llama"),
    "qwen3": _decoder("Qwen3"),
    "nomic_bert": _nomic("NomicBert", "nomic_bert"),
    "gte": _nomic("Gte", "gte"),
    "eurobert": Family(
        class_prefix="EuroBert",
        encoder="model",
        dense="dense",
        sequence_output="classifier",
        answer_output=None,
    ),
}
"""Families by `model_type`."""


def class_name(family: Family, kind: HeadKind) -> str:
    """The class of transformers that has a head of this kind; ranking is one logit of a pair."""
    wanted = HeadKind.SEQUENCE_CLASSIFICATION if kind is HeadKind.RANKING else kind
    (suffix,) = (suffix for suffix, it in CLASS_SUFFIXES.items() if it is wanted)
    return family.class_prefix + suffix


def kind_of_class(model_class: str) -> HeadKind | None:
    """Return the kind of head of a class of transformers, by the end of its name."""
    return next(
        (kind for suffix, kind in CLASS_SUFFIXES.items() if model_class.endswith(suffix)), None
    )


def has_class(spec: HeadSpec, config: BackboneConfig) -> bool:
    """Whether a class of transformers computes this head on this encoder."""
    answers = spec.kind is HeadKind.QUESTION_ANSWERING
    if answers and FAMILIES[config.model_type].answer_output is None:
        return False
    is_mean = spec.pooling is Pooling.MEAN
    usual = head_spec(spec.kind, config, num_outputs=spec.num_labels, is_mean=is_mean)
    # `config.json` of the export names the padding token of the head.
    return spec == replace(usual, padding_id=spec.padding_id)


def head_spec(
    kind: HeadKind, config: BackboneConfig, *, num_outputs: int, is_mean: bool = False
) -> HeadSpec:
    """Return the head that transformers' class of this kind has.

    Sequence heads read the first token; those of ModernBERT and EuroBERT read the mean if the
    configuration says so. In decoders, sequence heads read the last token that is not the padding
    token, and have no bias.
    """
    if config.is_causal:
        padding_id = None if kind.reads_tokens else config.known_padding_id
        return HeadSpec(
            kind=kind,
            num_labels=num_outputs,
            pooling=None if kind.reads_tokens else Pooling.LAST,
            bias=kind.reads_tokens,
            padding_id=padding_id,
        )
    pooling = None if kind.reads_tokens else Pooling.FIRST
    has_mean = isinstance(config, ModernBertConfig) or config.model_type in eurobert.MODEL_TYPES
    if has_mean and pooling is not None and is_mean:
        pooling = Pooling.MEAN
    block = architecture_of(config).dense_block(config, pooling)
    return HeadSpec(
        kind=kind,
        num_labels=num_outputs,
        pooling=pooling,
        dense=block is not None,
        block=block or TANH_BLOCK,
    )


def head_names(family: Family, kind: HeadKind) -> dict[str, str]:
    """Return our names of the tensors that a head may have, each with its stored name."""
    match kind:
        case HeadKind.QUESTION_ANSWERING:
            modules = {"head.output": family.answer_output or "qa_outputs"}
        case HeadKind.TOKEN_CLASSIFICATION:
            modules = {"head.output": family.token_output}
        case HeadKind.SEQUENCE_CLASSIFICATION | HeadKind.RANKING:
            modules = {"head.output": family.sequence_output}
    if family.dense is not None and (family.has_dense_tokens or not kind.reads_tokens):
        modules["head.dense"] = family.dense
    if family.norm is not None:
        modules["head.norm"] = family.norm
    return {
        f"{ours}.{part}": f"{theirs}.{part}"
        for ours, theirs in modules.items()
        for part in ("weight", "bias")
    }


def encoder_names(
    family: Family, kind: HeadKind, config: BackboneConfig
) -> dict[str, tuple[str, ...]]:
    """Our names of the encoder's tensors, each with the stored tensors that it stacks."""
    sources, encoder = architecture_of(config).source_names, family.encoder_of(kind)
    return {
        name: tuple(f"{encoder}.{source}" for source in sources(name))
        for name in encoder_shapes(config)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMap:
    """A linear map of a layer, and the rows of a module of transformers that are its rows."""

    layer: int
    target: LinearMap
    rows: slice


def map_places(family: Family, config: BackboneConfig) -> dict[str, tuple[HeldMap, ...]]:
    """The linear maps that each module of transformers holds, by the module's name.

    A module may hold query, key and value, or serve several layers. A module that is only a part of
    a map has no place.
    """
    source_names = architecture_of(config).source_names
    places = defaultdict[str, list[HeldMap]](list)
    for layer in range(config.num_layers):
        for target in LinearMap:
            part = "qkv" if target in QKV else target.value
            sources = source_names(f"layers.{layer}.{part}.weight")
            width, _ = map_widths(target, layer, config)
            index = QKV.index(target) if target in QKV else 0
            if len(sources) == 1:
                source, first = sources[0], sum(config.qkv_widths[:index])
            elif len(sources) == len(QKV) and target in QKV:
                source, first = sources[index], 0
            else:
                continue
            name = f"{family.encoder}.{source.removesuffix('.weight')}"
            rows = slice(first, first + width)
            places[name].append(HeldMap(layer=layer, target=target, rows=rows))
    return {name: tuple(own) for name, own in places.items()}


def to_stored(
    tensors: Mapping[str, Tensor], family: Family, head: HeadSpec, config: BackboneConfig
) -> dict[str, Tensor]:
    """Rename the tensors of a whole model to transformers' names."""
    of_head = head_names(family, head.kind)
    return {
        **encoder_to_stored(tensors, family, head.kind, config),
        **{of_head[name]: tensors[name] for name in head_shapes(head, config)},
    }


def encoder_to_stored(
    tensors: Mapping[str, Tensor], family: Family, kind: HeadKind, config: BackboneConfig
) -> dict[str, Tensor]:
    """Rename the tensors of an encoder to transformers' names in the class with this head."""
    return {
        source: part
        for name, sources in encoder_names(family, kind, config).items()
        for source, part in zip(sources, source_parts(name, tensors[name], config), strict=True)
    }


def from_stored(
    stored: Mapping[str, Tensor], family: Family, head: HeadSpec, config: BackboneConfig
) -> dict[str, Tensor]:
    """Rename the tensors of a whole model to ours."""
    names = encoder_names(family, head.kind, config)
    encoder = {
        name: torch.cat([stored[source] for source in sources]) for name, sources in names.items()
    }
    of_head = head_names(family, head.kind)
    return {**encoder, **{name: stored[of_head[name]] for name in head_shapes(head, config)}}


def source_parts(name: str, tensor: Tensor, config: BackboneConfig) -> tuple[Tensor, ...]:
    """The stored tensors that our tensor `name` stacks."""
    return torch.split(tensor, source_rows(name, len(tensor), config))


def unread_names(family: Family, kind: HeadKind, config: BackboneConfig) -> frozenset[str]:
    """Tensors that checkpoints may hold, but that this encoder does not read."""
    names = {f"{family.encoder}.pooler.dense.{part}" for part in ("weight", "bias")}
    if isinstance(config, DebertaConfig):
        names.add(f"{family.encoder}.embeddings.position_embeddings.weight")
    read = encoder_names(family, kind, config).values()
    return frozenset(names.difference(*read))


def config_fields(config: BackboneConfig) -> dict[str, JsonValue]:
    """The fields of `config.json` that describe the encoder."""
    if isinstance(config, ModernBertConfig):
        return _modernbert_fields(config)
    if isinstance(config, DecoderConfig):
        return _decoder_fields(config)
    if isinstance(config, NomicConfig):
        return _nomic_fields(config)
    if config.model_type == "distilbert":
        return _distilbert_fields(config)
    more: dict[str, JsonValue] = {}
    if config.model_type == "electra":
        more = {"embedding_size": config.embedding_width or config.hidden_width}
    elif isinstance(config, DebertaConfig):
        more = _deberta_fields(config)
    return {
        "model_type": config.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.intermediate_width,
        "max_position_embeddings": config.num_positions,
        "type_vocab_size": config.num_token_types,
        "pad_token_id": config.padding_id,
        "layer_norm_eps": config.layer_norm_epsilon,
        "hidden_act": config.activation.value,
        **more,
    }


def _distilbert_fields(config: BackboneConfig) -> dict[str, JsonValue]:
    return {
        "model_type": config.model_type,
        "vocab_size": config.vocab_size,
        "dim": config.hidden_width,
        "n_layers": config.num_layers,
        "n_heads": config.num_heads,
        "hidden_dim": config.intermediate_width,
        "max_position_embeddings": config.num_positions,
        "pad_token_id": config.padding_id,
        "activation": config.activation.value,
    }


def _deberta_fields(config: DebertaConfig) -> dict[str, JsonValue]:
    products = {"p2c": config.position_to_content, "c2p": config.content_to_position}
    return {
        "type_vocab_size": config.num_token_types if config.has_token_types else 0,
        "embedding_size": config.embedding_width or config.hidden_width,
        "position_biased_input": config.has_positions,
        "relative_attention": config.is_relative,
        "pos_att_type": [name for name, is_read in products.items() if is_read],
        "share_att_key": True,
        "position_buckets": config.position_buckets or -1,
        "max_relative_positions": config.farthest,
        "norm_rel_ebd": "layer_norm" if config.norms_relative else "none",
        "pooler_hidden_act": config.dense_block.activation.value,
    }


def _modernbert_fields(config: ModernBertConfig) -> dict[str, JsonValue]:
    ropes = {GLOBAL: config.global_rope, LOCAL: config.local_rope}
    return {
        "model_type": config.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.intermediate_width,
        "max_position_embeddings": config.num_positions,
        "pad_token_id": config.padding_id,
        "norm_eps": config.layer_norm_epsilon,
        "norm_bias": config.norm_bias,
        "hidden_activation": config.activation.value,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.feedforward_bias,
        "local_attention": 2 * config.reach,
        "layer_types": [LOCAL if is_local else GLOBAL for is_local in config.is_local],
        "rope_parameters": {kind: {**rope.facts()} for kind, rope in ropes.items()},
        "classifier_activation": config.dense_block.activation.value,
        "classifier_bias": config.dense_block.bias,
    }


def _decoder_fields(config: DecoderConfig) -> dict[str, JsonValue]:
    # EuroBERT reads the first token only if its configuration says so.
    pooling: dict[str, JsonValue] = {} if config.is_causal else {"classifier_pooling": "bos"}
    return {
        **pooling,
        "model_type": config.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_key_heads,
        "head_dim": config.head_width,
        "intermediate_size": config.intermediate_width,
        "max_position_embeddings": config.num_positions,
        "pad_token_id": config.known_padding_id,
        "rms_norm_eps": config.layer_norm_epsilon,
        "hidden_act": config.activation.value,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.feedforward_bias,
        "rope_parameters": {**config.rope.facts()},
    }


def _nomic_fields(config: NomicConfig) -> dict[str, JsonValue]:
    return {
        "model_type": config.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.intermediate_width,
        "max_position_embeddings": config.num_positions,
        "type_vocab_size": config.num_token_types if config.has_token_types else 0,
        "pad_token_id": config.padding_id,
        "layer_norm_eps": config.layer_norm_epsilon,
        "hidden_act": config.activation.value,
        "rope_parameters": {**config.rope.facts()},
    }
