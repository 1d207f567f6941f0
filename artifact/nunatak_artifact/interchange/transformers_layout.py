"""Names of classes, configuration fields and tensors in transformers' encoders, with a head.

Import and export share this description. The classes of RoBERTa, XLM-R and CamemBERT differ in
their names only. ModernBERT has one head for all kinds, and reads sequences by their mean or their
first token.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from pydantic import JsonValue
from torch import Tensor

from nunatak_contract.enums import HeadKind, Pooling
from nunatak_contract.heads import TANH_BLOCK
from nunatak_model import BackboneConfig, HeadSpec
from nunatak_model.architectures import (
    architecture_of,
    encoder_shapes,
    eurobert,
    source_rows,
)
from nunatak_model.architectures.decoder import DecoderConfig
from nunatak_model.architectures.modernbert import GLOBAL, LOCAL, ModernBertConfig
from nunatak_model.architectures.nomic import NomicConfig
from nunatak_model.heads import head_shapes

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
    """The dense layer of the sequence classification head; in ModernBERT, of every head. None in
    decoders."""
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
    def has_dense_tokens(self) -> bool:
        """Whether heads that read tokens have the dense layer too."""
        return self.norm is not None


def _roberta(class_prefix: str) -> Family:
    return Family(
        class_prefix=class_prefix,
        encoder="roberta",
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

    In the BERT family, sequence heads read the first token through a dense layer with tanh, and
    token heads have neither. In ModernBERT every head has the dense block of the configuration,
    and sequence heads read the mean if the configuration says so. In decoders, sequence heads read
    the last token that is not the padding token, and have no bias.
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
    if isinstance(config, ModernBertConfig):
        if pooling is not None and is_mean:
            pooling = Pooling.MEAN
        return HeadSpec(
            kind=kind,
            num_labels=num_outputs,
            pooling=pooling,
            dense=True,
            block=config.dense_block,
        )
    if pooling is not None and is_mean and config.model_type in eurobert.MODEL_TYPES:
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


def stored_shapes(
    family: Family, head: HeadSpec, config: BackboneConfig
) -> dict[str, tuple[int, ...]]:
    """Every tensor of a model with this head, by stored name."""
    names = encoder_names(family, head.kind, config)
    shapes = {
        source: (rows, *shape[1:])
        for name, shape in encoder_shapes(config).items()
        for source, rows in zip(names[name], source_rows(name, shape[0], config), strict=True)
    }
    of_head = head_names(family, head.kind)
    return {**shapes, **{of_head[name]: it for name, it in head_shapes(head, config).items()}}


def to_stored(
    tensors: Mapping[str, Tensor], family: Family, head: HeadSpec, config: BackboneConfig
) -> dict[str, Tensor]:
    """Rename the tensors of a whole model to transformers' names."""
    names = encoder_names(family, head.kind, config)
    stored = {
        source: part
        for name, sources in names.items()
        for source, part in zip(sources, source_parts(name, tensors[name], config), strict=True)
    }
    of_head = head_names(family, head.kind)
    return {**stored, **{of_head[name]: tensors[name] for name in head_shapes(head, config)}}


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


def unread_names(family: Family) -> frozenset[str]:
    """Tensors that checkpoints may hold, but that no head reads."""
    return frozenset(f"{family.encoder}.pooler.dense.{part}" for part in ("weight", "bias"))


def config_fields(config: BackboneConfig) -> dict[str, JsonValue]:
    """The fields of `config.json` that describe the encoder."""
    if isinstance(config, ModernBertConfig):
        return _modernbert_fields(config)
    if isinstance(config, DecoderConfig):
        return _decoder_fields(config)
    if isinstance(config, NomicConfig):
        return _nomic_fields(config)
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
