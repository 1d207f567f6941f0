"""Names of classes, configuration fields and tensors in transformers' BERT family, with a head.

Import and export share this description. The classes of RoBERTa, XLM-R and CamemBERT differ in
their names only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from pydantic import JsonValue
from torch import Tensor

from nunatak_contract.enums import HeadKind, Pooling
from nunatak_model import BackboneConfig, HeadSpec
from nunatak_model.architectures import architecture_of, encoder_shapes
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
    dense: str
    """The layer with tanh of the sequence classification head."""
    sequence_output: str


def _roberta(class_prefix: str) -> Family:
    return Family(
        class_prefix=class_prefix,
        encoder="roberta",
        dense="classifier.dense",
        sequence_output="classifier.out_proj",
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
}
"""Families by `model_type`."""


def class_name(family: Family, kind: HeadKind) -> str:
    """The class of transformers that has a head of this kind; ranking is one logit of a pair."""
    wanted = HeadKind.SEQUENCE_CLASSIFICATION if kind is HeadKind.RANKING else kind
    (suffix,) = (suffix for suffix, it in CLASS_SUFFIXES.items() if it is wanted)
    return family.class_prefix + suffix


def has_class(spec: HeadSpec) -> bool:
    """Whether a class of transformers computes this head.

    Its sequence heads read the first token through a dense layer, its token heads have neither.
    """
    return spec.kind.reads_tokens or (spec.pooling is Pooling.FIRST and spec.dense)


def head_spec(kind: HeadKind, *, num_outputs: int) -> HeadSpec:
    """The head that transformers' class of this kind has."""
    if kind.reads_tokens:
        return HeadSpec(kind=kind, num_labels=num_outputs)
    return HeadSpec(kind=kind, num_labels=num_outputs, pooling=Pooling.FIRST, dense=True)


def head_names(family: Family, kind: HeadKind) -> dict[str, str]:
    """Our names of the tensors of a head, each with the name it is stored under."""
    match kind:
        case HeadKind.QUESTION_ANSWERING:
            modules = {"head.output": "qa_outputs"}
        case HeadKind.TOKEN_CLASSIFICATION:
            modules = {"head.output": "classifier"}
        case HeadKind.SEQUENCE_CLASSIFICATION | HeadKind.RANKING:
            modules = {"head.dense": family.dense, "head.output": family.sequence_output}
    return {
        f"{ours}.{part}": f"{theirs}.{part}"
        for ours, theirs in modules.items()
        for part in ("weight", "bias")
    }


def encoder_names(family: Family, config: BackboneConfig) -> dict[str, tuple[str, ...]]:
    """Our names of the encoder's tensors, each with the stored tensors that it stacks."""
    sources = architecture_of(config).source_names
    return {
        name: tuple(f"{family.encoder}.{source}" for source in sources(name))
        for name in encoder_shapes(config)
    }


def stored_shapes(
    family: Family, head: HeadSpec, config: BackboneConfig
) -> dict[str, tuple[int, ...]]:
    """Every tensor of a model with this head, by stored name."""
    encoder, names = encoder_shapes(config), encoder_names(family, config)
    shapes = {
        source: (shape[0] // len(names[name]), *shape[1:])
        for name, shape in encoder.items()
        for source in names[name]
    }
    of_head = head_names(family, head.kind)
    return {**shapes, **{of_head[name]: it for name, it in head_shapes(head, config).items()}}


def to_stored(
    tensors: Mapping[str, Tensor], family: Family, head: HeadSpec, config: BackboneConfig
) -> dict[str, Tensor]:
    """Rename the tensors of a whole model to transformers' names."""
    names = encoder_names(family, config)
    stored = {
        source: part
        for name, sources in names.items()
        for source, part in zip(sources, tensors[name].chunk(len(sources)), strict=True)
    }
    return {**stored, **{it: tensors[n] for n, it in head_names(family, head.kind).items()}}


def from_stored(
    stored: Mapping[str, Tensor], family: Family, head: HeadSpec, config: BackboneConfig
) -> dict[str, Tensor]:
    """Rename the tensors of a whole model to ours."""
    names = encoder_names(family, config)
    encoder = {
        name: torch.cat([stored[source] for source in sources]) for name, sources in names.items()
    }
    return {**encoder, **{n: stored[it] for n, it in head_names(family, head.kind).items()}}


def unread_names(family: Family) -> frozenset[str]:
    """Tensors that checkpoints may hold though no head of theirs reads them."""
    return frozenset(f"{family.encoder}.pooler.dense.{part}" for part in ("weight", "bias"))


def config_fields(config: BackboneConfig) -> dict[str, JsonValue]:
    """The fields of `config.json` that describe the encoder."""
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
