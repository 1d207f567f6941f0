"""Names of classes, configuration fields and tensors in transformers' encoders, with a head.

Import and export share this description, for whole models and for adapters. The classes of
RoBERTa, XLM-R and CamemBERT differ in their names only. ModernBERT has one head for all kinds. The
dense block of a head is the architecture's.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final, TypeVar, cast

import torch
from pydantic import JsonValue
from torch import Tensor

from nunatak_contract.enums import HeadKind, LinearMap, Pooling, ProblemType
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.reference import OWN_CODE
from nunatak_model import Backbone, BackboneConfig, HeadSpec, architectures
from nunatak_model.architectures import decoder, nomic
from nunatak_model.architectures.deberta import DebertaConfig
from nunatak_model.config import QKV
from nunatak_model.heads import head_shapes, usual_head

Part = TypeVar("Part")
POOLING: Final = "classifier_pooling"

CLASS_SUFFIXES: Final[Mapping[str, HeadKind]] = {
    "ForSequenceClassification": HeadKind.SEQUENCE_CLASSIFICATION,
    "ForTokenClassification": HeadKind.TOKEN_CLASSIFICATION,
    "ForQuestionAnswering": HeadKind.QUESTION_ANSWERING,
}
POOLINGS: Final[Mapping[str, Mapping[str, Pooling]]] = {
    "modernbert": {"cls": Pooling.FIRST, "mean": Pooling.MEAN},
    "eurobert": {"late": Pooling.LATE, "bos": Pooling.FIRST, "mean": Pooling.MEAN},
}
"""Values of `classifier_pooling` in architectures that have this setting, the default first."""
STACKS: Final[Mapping[str, Sequence[LinearMap]]] = {
    "qkv": QKV,
    **{it.value: (it,) for it in LinearMap if it not in QKV},
}
"""The stored maps of a layer, each with the maps in it."""
GATED: Final[Mapping[str, tuple[str, ...]]] = {
    **decoder.LAYER,
    "attention_norm": ("post_attention_layernorm",),
    "output_norm": ("post_mlp_layernorm",),
}
MODULES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    nomic.NOMIC: GATED,
    nomic.GTE: {**GATED, "feedforward_in": ("mlp.up_proj", "mlp.gate_proj")},
}
"""Parts of a layer, in classes whose names differ from the names in checkpoints."""
OF_HEAD: Final = frozenset(
    {
        *("architectures", "id2label", "label2id", "num_labels", "problem_type", POOLING),
        *("dtype", "torch_dtype", "transformers_version", "task_specific_params"),
        *("sentence_transformers", "sbert_ce_default_activation_function"),
    }
)
"""Fields of `config.json` that say how a head reads the encoder, or how the file was written."""


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
        class_prefix="Bert", encoder="bert", dense="bert.pooler.dense", sequence_output="classifier"
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


def kind_of_class(model_class: str) -> HeadKind | None:
    return next(
        (kind for suffix, kind in CLASS_SUFFIXES.items() if model_class.endswith(suffix)), None
    )


def has_class(spec: HeadSpec, config: BackboneConfig) -> bool:
    """Whether a class of transformers computes this head on this encoder."""
    answers = spec.kind is HeadKind.QUESTION_ANSWERING
    if answers and FAMILIES[config.model_type].answer_output is None:
        return False
    named = POOLINGS.get(config.model_type, {}).values()
    pooling = spec.pooling if spec.pooling in named else Pooling.FIRST
    usual = head_spec(spec.kind, config, num_outputs=spec.num_labels, pooling=pooling)
    # `config.json` of the export names the padding token of the head.
    return spec == replace(usual, padding_id=spec.padding_id)


def head_spec(
    kind: HeadKind,
    config: BackboneConfig,
    *,
    num_outputs: int,
    pooling: Pooling | None = Pooling.FIRST,
) -> HeadSpec:
    """Return the head that transformers' class of this kind has.

    `pooling` is the one that the configuration names, see `POOLINGS`. In decoders, sequence heads
    read the last token that is not the padding token, and have no bias.
    """
    pooling = Pooling.LAST if config.is_causal else pooling
    return usual_head(config, kind=kind, num_labels=num_outputs, pooling=pooling)


def usual_problem_type(head: HeadSpec) -> ProblemType | None:
    """The problem type of a head, where nothing names one."""
    if head.kind is not HeadKind.SEQUENCE_CLASSIFICATION:
        return None
    return ProblemType.MULTI_LABEL if head.num_labels == 1 else ProblemType.SINGLE_LABEL


def read_pooling(checkpoint: Checkpoint, config: BackboneConfig, named: str | None) -> Pooling:
    """The pooling of sequence heads under the setting `classifier_pooling`."""
    poolings = POOLINGS.get(config.model_type)
    if poolings is None:
        return Pooling.FIRST
    chosen = named or next(iter(poolings))
    if chosen not in poolings:
        raise checkpoint.refuse(
            f"its {POOLING} is {named!r}", f"expected one of {', '.join(poolings)}"
        )
    return poolings[chosen]


def pooling_fields(pooling: Pooling | None, config: BackboneConfig) -> dict[str, JsonValue]:
    """The setting `classifier_pooling`, in architectures that have it."""
    poolings = POOLINGS.get(config.model_type, {})
    named = next((name for name, it in poolings.items() if it is pooling), None)
    return {} if named is None else {POOLING: named}


def module_names(target: str, model_type: str) -> tuple[str, ...]:
    """Names, without prefix, of the parameters of transformers' encoder that our tensor stacks.

    The classes of NomicBERT and GTE rename and split the tensors of a checkpoint.
    """
    if model_type in MODULES and target.startswith("layers."):
        _, layer, part, kind = target.split(".")
        return tuple(f"layers.{layer}.{it}.{kind}" for it in MODULES[model_type][part])
    if model_type in MODULES and target.startswith("embeddings.norm."):
        return (target.replace("norm", "LayerNorm"),)
    return architectures.ARCHITECTURES[model_type].source_names(target)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMap:
    """Rows that a module of transformers and a linear map of a layer have in common."""

    layer: int
    target: LinearMap
    rows: slice
    """In the module."""
    part: slice
    """In the map."""


def _shares(
    parts: Sequence[Part], num_rows: int, config: BackboneConfig
) -> Iterator[tuple[Part, slice]]:
    """The rows of each part of a stack: of query, key and value, or equal shares."""
    is_qkv = len(parts) == len(QKV)
    sizes = config.qkv_widths if is_qkv else (num_rows // len(parts),) * len(parts)
    for part, size, end in zip(parts, sizes, accumulate(sizes), strict=True):
        yield part, slice(end - size, end)


def bare_to_stored(tensors: Mapping[str, Tensor], config: BackboneConfig) -> dict[str, Tensor]:
    """Rename the tensors of an encoder to the names of checkpoints, without prefix."""
    source_names = architectures.architecture_of(config).source_names
    return {
        source: part
        for name in architectures.encoder_shapes(config)
        for source, part in zip(
            source_names(name),
            torch.split(tensors[name], architectures.source_rows(name, len(tensors[name]), config)),
            strict=True,
        )
    }


@dataclass(frozen=True, slots=True)
class ClassLayout:
    """Names in the class of transformers for an encoder with a head of one kind."""

    config: BackboneConfig
    kind: HeadKind

    @property
    def family(self) -> Family:
        return FAMILIES[self.config.model_type]

    @property
    def class_name(self) -> str:
        """The class; ranking is one logit of a pair."""
        ranks = self.kind is HeadKind.RANKING
        wanted = HeadKind.SEQUENCE_CLASSIFICATION if ranks else self.kind
        (suffix,) = (suffix for suffix, it in CLASS_SUFFIXES.items() if it is wanted)
        return self.family.class_prefix + suffix

    @property
    def encoder(self) -> str:
        answers = self.kind is HeadKind.QUESTION_ANSWERING
        return (answers and self.family.answer_encoder) or self.family.encoder

    @property
    def head_names(self) -> dict[str, str]:
        """Our names of the tensors that the head may have, each with its stored name."""
        family = self.family
        match self.kind:
            case HeadKind.QUESTION_ANSWERING:
                modules = {"head.output": family.answer_output or "qa_outputs"}
            case HeadKind.TOKEN_CLASSIFICATION:
                modules = {"head.output": family.token_output}
            case HeadKind.SEQUENCE_CLASSIFICATION | HeadKind.RANKING:
                modules = {"head.output": family.sequence_output}
        # A head with a norm is the head of all kinds.
        if family.dense is not None and (family.norm is not None or not self.kind.reads_tokens):
            modules["head.dense"] = family.dense
        if family.norm is not None:
            modules["head.norm"] = family.norm
        return {
            f"{ours}.{part}": f"{theirs}.{part}"
            for ours, theirs in modules.items()
            for part in ("weight", "bias")
        }

    def num_outputs(self, stored: Mapping[str, Tensor], *, prefix: str = "") -> int:
        """The number of logits of the stored head. A later check covers missing tensors."""
        weight = stored.get(prefix + self.head_names["head.output.weight"])
        return self.kind.fixed_outputs or (
            len(weight) if weight is not None and weight.dim() else 1
        )

    def map_places(self) -> dict[str, tuple[HeldMap, ...]]:
        """The linear maps in each module, by the module's name.

        A module may hold query, key and value, or a half of the first feed-forward map.
        """
        places, config = defaultdict[str, list[HeldMap]](list), self.config
        for layer in range(config.num_layers):
            shapes = architectures.layer_shapes(layer, config)
            for stack, targets in STACKS.items():
                name = f"layers.{layer}.{stack}.weight"
                sources = module_names(name, config.model_type)
                for source, stored in _shares(sources, shapes[name][0], config):
                    module = f"{self.encoder}.{source.removesuffix('.weight')}"
                    for target, whole in _shares(targets, shapes[name][0], config):
                        first, last = max(stored.start, whole.start), min(stored.stop, whole.stop)
                        if first < last:
                            rows = slice(first - stored.start, last - stored.start)
                            part = slice(first - whole.start, last - whole.start)
                            place = HeldMap(layer=layer, target=target, rows=rows, part=part)
                            places[module].append(place)
        return {name: tuple(own) for name, own in places.items()}

    def encoder_to_stored(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        bare = bare_to_stored(tensors, self.config)
        return {f"{self.encoder}.{name}": it for name, it in bare.items()}

    def to_stored(self, tensors: Mapping[str, Tensor], head: HeadSpec) -> dict[str, Tensor]:
        names = self.head_names
        own = {names[name]: tensors[name] for name in head_shapes(head, self.config)}
        return {**self.encoder_to_stored(tensors), **own}

    def from_model(self, parameters: Mapping[str, Tensor], head: HeadSpec) -> dict[str, Tensor]:
        """Rename the parameters of a model of transformers to our names."""
        tensors, names = dict[str, Tensor](), self.head_names
        for name in architectures.encoder_shapes(self.config):
            sources = module_names(name, self.config.model_type)
            tensors[name] = torch.cat([parameters[f"{self.encoder}.{it}"] for it in sources])
        return {**tensors, **{it: parameters[names[it]] for it in head_shapes(head, self.config)}}

    @property
    def unread_names(self) -> frozenset[str]:
        """Tensors that checkpoints may hold, but that the model with this head may not read."""
        encoder = self.family.encoder
        names = {f"{encoder}.pooler.dense.{part}" for part in ("weight", "bias")}
        if isinstance(self.config, DebertaConfig):
            names.add(f"{encoder}.embeddings.position_embeddings.weight")
        return frozenset(names)


def config_fields(backbone: Backbone, pooling: Pooling | None) -> dict[str, JsonValue]:
    """The fields of `config.json` that describe the encoder, as the backbone's own file has them.

    `pooling` is the one that a sequence head reads, for architectures with such a setting.
    """
    kept = {
        name: cast("JsonValue", value)
        for name, value in backbone.source_config.items()
        if not name.startswith("_") and name not in {*OF_HEAD, *OWN_CODE}
    }
    padding = {} if backbone.config.is_causal else {"pad_token_id": backbone.config.padding_id}
    return {**padding, **kept, **pooling_fields(pooling, backbone.config)}
