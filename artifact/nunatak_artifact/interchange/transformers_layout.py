"""Names of classes, configuration fields and tensors in transformers' encoders, with a head.

Import and export share this description. The classes of RoBERTa, XLM-R and CamemBERT differ in
their names only. ModernBERT has one head for all kinds, and reads sequences by their mean or their
first token.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from pydantic import JsonValue
from torch import Tensor

from nunatak_contract.enums import HeadKind, LinearMap, Pooling
from nunatak_model import BackboneConfig, HeadSpec
from nunatak_model.architectures import architecture_of, encoder_shapes
from nunatak_model.architectures.modernbert import GLOBAL, LOCAL, ModernBertConfig
from nunatak_model.heads import head_shapes
from nunatak_model.methods.base import map_widths

CLASS_SUFFIXES: Final[Mapping[str, HeadKind]] = {
    "ForSequenceClassification": HeadKind.SEQUENCE_CLASSIFICATION,
    "ForTokenClassification": HeadKind.TOKEN_CLASSIFICATION,
    "ForQuestionAnswering": HeadKind.QUESTION_ANSWERING,
}
QKV_ROWS: Final[Mapping[LinearMap, int]] = {
    LinearMap.QUERY: 0,
    LinearMap.KEY: 1,
    LinearMap.VALUE: 2,
}
"""The position of a target in the stacked map of query, key and value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Names that a family of classes shares. Names of modules come without `.weight`."""

    class_prefix: str
    encoder: str
    dense: str
    """The dense layer of the sequence classification head; in ModernBERT, of every head."""
    sequence_output: str
    answer_output: str = "qa_outputs"
    norm: str | None = None
    """The norm after the dense layer, if there is one."""

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
    is_mean = spec.pooling is Pooling.MEAN
    return spec == head_spec(spec.kind, config, num_outputs=spec.num_labels, is_mean=is_mean)


def head_spec(
    kind: HeadKind, config: BackboneConfig, *, num_outputs: int, is_mean: bool = False
) -> HeadSpec:
    """Return the head that transformers' class of this kind has.

    In the BERT family, sequence heads read the first token through a dense layer with tanh, and
    token heads have neither. In ModernBERT every head has the dense block of the configuration,
    and sequence heads read the mean if the configuration says so.
    """
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
    return HeadSpec(kind=kind, num_labels=num_outputs, pooling=pooling, dense=not kind.reads_tokens)


def head_names(family: Family, kind: HeadKind) -> dict[str, str]:
    """Return our names of the tensors that a head may have, each with its stored name."""
    match kind:
        case HeadKind.QUESTION_ANSWERING:
            modules = {"head.output": family.answer_output}
        case HeadKind.TOKEN_CLASSIFICATION:
            modules = {"head.output": "classifier"}
        case HeadKind.SEQUENCE_CLASSIFICATION | HeadKind.RANKING:
            modules = {"head.output": family.sequence_output}
    if family.has_dense_tokens or not kind.reads_tokens:
        modules["head.dense"] = family.dense
    if family.norm is not None:
        modules["head.norm"] = family.norm
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
            part = "qkv" if target in QKV_ROWS else target.value
            sources = source_names(f"layers.{layer}.{part}.weight")
            width, _ = map_widths(target, layer, config)
            index = QKV_ROWS.get(target, 0)
            if len(sources) == 1:
                source, first = sources[0], index * width
            elif len(sources) == len(QKV_ROWS) and target in QKV_ROWS:
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
        **encoder_to_stored(tensors, family, config),
        **{of_head[name]: tensors[name] for name in head_shapes(head, config)},
    }


def encoder_to_stored(
    tensors: Mapping[str, Tensor], family: Family, config: BackboneConfig
) -> dict[str, Tensor]:
    """Rename the tensors of an encoder to transformers' names in the classes with a head."""
    return {
        source: part
        for name, sources in encoder_names(family, config).items()
        for source, part in zip(sources, tensors[name].chunk(len(sources)), strict=True)
    }


def from_stored(
    stored: Mapping[str, Tensor], family: Family, head: HeadSpec, config: BackboneConfig
) -> dict[str, Tensor]:
    """Rename the tensors of a whole model to ours."""
    names = encoder_names(family, config)
    encoder = {
        name: torch.cat([stored[source] for source in sources]) for name, sources in names.items()
    }
    of_head = head_names(family, head.kind)
    return {**encoder, **{name: stored[of_head[name]] for name in head_shapes(head, config)}}


def unread_names(family: Family) -> frozenset[str]:
    """Tensors that checkpoints may hold, but that no head reads."""
    return frozenset(f"{family.encoder}.pooler.dense.{part}" for part in ("weight", "bias"))


def config_fields(config: BackboneConfig) -> dict[str, JsonValue]:
    """The fields of `config.json` that describe the encoder."""
    if isinstance(config, ModernBertConfig):
        return _modernbert_fields(config)
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
    bases = {GLOBAL: config.global_base, LOCAL: config.local_base}
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
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()
        },
        "classifier_activation": config.dense_block.activation.value,
        "classifier_bias": config.dense_block.bias,
    }
