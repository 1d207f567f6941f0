"""Import of model folders of transformers, and of cross-encoders of sentence-transformers.

Each release of sentence-transformers, 2 to 6, marks a cross-encoder in its own place: release 6 in
`config_sentence_transformers.json`, releases 4 and 5 with the key `sentence_transformers` in
`config.json`, releases 2 and 3 with another key in `config.json`. Releases 2 and 3 write the key
only if the user chose the activation.

`find_divergence` compares tensors and finds the split depth: the first layer where the checkpoint
differs from the backbone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, cast

import torch
from pydantic import JsonValue
from torch import Tensor

from nunatak_contract.enums import HeadKind, LogitUse, RankingScore
from nunatak_contract.methods import Full, HeadOnly, TopK
from nunatak_contract.plain_text import percent
from nunatak_exchange import checks, reference
from nunatak_exchange import transformers_layout as layout
from nunatak_exchange.checkpoint import CONFIG, Checkpoint, Meaning
from nunatak_model import (
    Backbone,
    BranchSpec,
    build_branch,
    dedicated_parameters,
    parameter_shapes,
    sentence_folder,
)

MODEL_TYPE: Final = "CrossEncoder"
KEY, OLD_KEY = "sentence_transformers", "sbert_ce_default_activation_function"
ACTIVATION: Final = "activation_fn"
SCORES: Final[Mapping[str, RankingScore]] = {
    "Sigmoid": RankingScore.SIGMOID,
    "Identity": RankingScore.NONE,
}
"""Scores by the class name of the activation in `torch.nn`."""
PATHS: Final[Mapping[RankingScore, str]] = {
    RankingScore.SIGMOID: "torch.nn.modules.activation.Sigmoid",
    RankingScore.NONE: "torch.nn.modules.linear.Identity",
}
"""The activations as sentence-transformers writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadReading:
    """How the logits of a folder are read, which a cross-encoder says in files of its own."""

    kind: HeadKind
    score: RankingScore
    max_length: int | None
    """The longest input in tokens: the modules', else the tokenizer's; None if not set."""


def read_logits(folder: checks.Import, kind: HeadKind, *, num_outputs: int) -> HeadReading:
    """Return how a head is read that the class of the folder names."""
    checkpoint, max_length = folder.checkpoint, None

    def read(name: str) -> object:
        return checkpoint.json(name) if checkpoint.has(name) else None

    with checkpoint.backbone_errors():
        general = sentence_folder.json_object(read, sentence_folder.SENTENCE_CONFIG)
        config = sentence_folder.json_object(read, CONFIG)
        is_new = general.get("model_type") == MODEL_TYPE
        is_marked = is_new or any(config.get(it) is not None for it in (KEY, OLD_KEY))
        if is_new and sentence_folder.read_modules(read) is not None:
            kinds = [it for it, _ in sentence_folder.read_modules(read) or ()]
            if kinds != ["Transformer"]:
                raise checkpoint.refuse(
                    f"its modules are {', '.join(kinds)}",
                    "expected a cross-encoder of one Transformer",
                )
            sentence_folder.check_prompt(general)
            definition, settings = checkpoint.definition(folder.backbone), checkpoint.settings
            max_length = sentence_folder.read_max_tokens(read, definition, settings)
        score = _score(checkpoint, general, config) if is_marked else RankingScore.SIGMOID
        max_length = max_length or checkpoint.max_length(folder.backbone)
    is_sequence = kind is HeadKind.SEQUENCE_CLASSIFICATION
    if is_sequence and _ranks(folder, num_outputs, is_marked=is_marked):
        return HeadReading(kind=HeadKind.RANKING, score=score, max_length=max_length)
    return HeadReading(kind=kind, score=RankingScore.SIGMOID, max_length=max_length)


def _ranks(folder: checks.Import, num_outputs: int, *, is_marked: bool) -> bool:
    """Whether a sequence classification becomes a ranking: the caller decides before the folder."""
    choices = folder.choices
    if choices.logit_use is LogitUse.RANKING:
        if num_outputs != 1:
            raise folder.checkpoint.refuse(
                f"it has {num_outputs} logits",
                "expected one logit for a ranking; import it as a classification",
            )
        return True
    said = choices.logit_use is not None or choices.problem_type is not None
    return num_outputs == 1 and is_marked and not said


def activation_fields(score: RankingScore) -> dict[str, JsonValue]:
    """The fields that releases 4 and later read in the `config.json` of a cross-encoder."""
    return {KEY: {ACTIVATION: PATHS[score]}}


def _score(
    checkpoint: Checkpoint, general: Mapping[str, Any], config: Mapping[str, Any]
) -> RankingScore:
    """The activation of the logit, from the first place that sentence-transformers would read."""
    path = general.get(ACTIVATION)
    inner = config.get(KEY)
    if path is None and isinstance(inner, dict):
        path = cast("dict[str, object]", inner).get(ACTIVATION)
    elif path is None:
        path = config.get(OLD_KEY)
    if path is None:
        return RankingScore.SIGMOID
    module, _, name = str(path).rpartition(".")
    if name not in SCORES or not f"{module}.".startswith("torch.nn."):
        raise checkpoint.refuse(
            f"it scores by {str(path)[:80]!r}", f"expected {' or '.join(PATHS.values())}"
        )
    return SCORES[name]


EMBEDDINGS, LAYERS = "embeddings", "layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The parts of an encoder that differ from the backbone in at least one bit."""

    embeddings: bool
    layers: tuple[int, ...]
    num_layers: int

    def method(self) -> TopK | HeadOnly | Full:
        if self.embeddings:
            return Full()
        if not self.layers:
            return HeadOnly()
        return TopK(num_layers=self.num_layers - self.layers[0])

    def describe(self) -> str:
        method = self.method()
        match method:
            case HeadOnly():
                return f"no layer differs: head on all {self.num_layers} layers"
            case TopK():
                return f"{_layers(self.layers)}: top-{method.num_layers} of {self.num_layers}"
            case Full():
                return "the embeddings differ: a full copy"


def find_divergence(encoder: Mapping[str, Tensor], backbone: Backbone) -> Divergence:
    """Compare all tensors of an encoder with the backbone's; both are named as in the backbone."""
    differing = [
        name
        for name, frozen in backbone.parameters.items()
        if not torch.equal(encoder[name].to(torch.float32), frozen.cpu().to(torch.float32))
    ]
    layers = {int(name.split(".")[1]) for name in differing if name.startswith(f"{LAYERS}.")}
    return Divergence(
        embeddings=any(name.startswith(f"{EMBEDDINGS}.") for name in differing),
        layers=tuple(sorted(layers)),
        num_layers=backbone.config.num_layers,
    )


def _is_rounded(
    encoder: Mapping[str, Tensor], found: Divergence, backbone: Backbone, dtype: torch.dtype
) -> bool:
    """Whether a part that differs would be the backbone's if the backbone were in this format."""
    parts = {f"{LAYERS}.{layer}." for layer in found.layers}
    parts |= {f"{EMBEDDINGS}."} if found.embeddings else set()
    frozen = backbone.parameters
    return any(
        all(
            torch.equal(encoder[name].to(dtype), frozen[name].cpu().to(dtype))
            for name in frozen
            if name.startswith(part)
        )
        for part in parts
    )


def _advice(rounded: torch.dtype | None) -> str:
    if rounded is None:
        return ""
    name = str(rounded).removeprefix("torch.")
    return (
        f" (the folder stores {name}, and some of what differs is the backbone, rounded to {name}: "
        "save the trained model in float32 and import it again, so that those parts are shared)"
    )


def _layers(numbers: Sequence[int]) -> str:
    """`layer 3 differs`, or `layers 0, 3-5 differ`."""
    if len(numbers) == 1:
        return f"layer {numbers[0]} differs"
    # In a run of numbers, number and position grow alike.
    groups = groupby(enumerate(numbers), lambda it: it[1] - it[0])
    runs = [[number for _, number in run] for _, run in groups]
    names = ("-".join(map(str, dict.fromkeys((run[0], run[-1])))) for run in runs)
    return f"layers {', '.join(names)} differ"


def import_transformers(
    checkpoint: Checkpoint,
    backbone: Backbone,
    choices: checks.ImportChoices = checks.AS_THE_FOLDER_SAYS,
) -> checks.ImportedTask:
    """Keep the parts of a fine-tuned checkpoint that differ from the backbone in at least one bit.

    The split depth is the first layer that differs. The classes are those for sequence
    classification (one label, several, or regression), token classification and question
    answering; the one logit of a cross-encoder becomes a ranking.
    """
    folder, meaning = (
        checks.Import(checkpoint, backbone, choices),
        checkpoint.parsed(CONFIG, Meaning),
    )
    class_name, kind = _head_class(checkpoint, meaning.architectures or ())
    folder.check_shape()
    folder.check_tokenizer()
    stored = checkpoint.float_tensors()
    names = layout.ClassLayout(backbone.config, kind)
    num_outputs = names.num_outputs(stored)
    reading = read_logits(folder, kind, num_outputs=num_outputs)
    head = layout.head_spec(
        reading.kind,
        folder.config,
        num_outputs=num_outputs,
        pooling=layout.read_pooling(checkpoint, backbone.config, meaning.classifier_pooling),
    )
    config = reference.config_of(
        checkpoint, {**checkpoint.config, "num_labels": num_outputs, "id2label": None}
    )
    loaded = reference.load_model(
        checkpoint, reference.class_named(checkpoint, class_name), config, stored
    )
    unread = loaded.unread - names.unread_names
    checkpoint.check_names(missing=loaded.missing, unread=unread, misshapen=loaded.misshapen)
    tensors = names.from_model(loaded.model.state_dict(), head)
    found = find_divergence(tensors, backbone)
    formats = {it.dtype for it in stored.values()} - {torch.float32}
    rounded = next((it for it in formats if _is_rounded(tensors, found, backbone, it)), None)
    spec = BranchSpec(method=found.method(), head=head)
    parameters = {
        name: tensors[name].to(torch.float32, copy=True)
        for name in parameter_shapes(spec, backbone.config)
    }
    own = sum(tensor.numel() for tensor in parameters.values())
    shared = 1 - own / dedicated_parameters(backbone.config, head)
    branch = build_branch(spec, backbone.config, parameters)
    expected = reference.answers_of(loaded.model, backbone)
    reference.check_answers(checkpoint, branch, backbone, expected)
    # transformers does not store its default names.
    named = meaning.id2label or {str(it): f"LABEL_{it}" for it in range(head.num_labels)}
    return checks.ImportedTask(
        spec=spec,
        labels=folder.labels(head, named),
        problem_type=folder.problem_type(head),
        parameters=parameters,
        max_length=reading.max_length,
        score=reading.score,
        source=f"{class_name}, {found.describe()}; {percent(shared, digits=0)} of the parameters "
        f"stay shared{_advice(rounded)}",
    )


def _head_class(checkpoint: Checkpoint, named: Sequence[str]) -> tuple[str, HeadKind]:
    if len(named) != 1:
        raise checkpoint.refuse(
            f"architectures in config.json names {', '.join(named) or 'no class'}",
            "write there the one class of transformers that the model was trained as, such "
            "as BertForSequenceClassification",
        )
    for family in layout.FAMILIES.values():
        for suffix, kind in layout.CLASS_SUFFIXES.items():
            if named[0] == family.class_prefix + suffix:
                return named[0], kind
    if named[0].endswith("Model"):
        raise checkpoint.refuse(
            f"it is a {named[0]}, which has no head (and SetFit's head is a pickle)",
            "train a head on it, with its folder as the backbone (nunatak train --backbone)",
        )
    prefixes = dict.fromkeys(family.class_prefix for family in layout.FAMILIES.values())
    raise checkpoint.refuse(
        f"it is a {named[0]}",
        f"expected a class of transformers called {', '.join(prefixes)} with "
        f"{', '.join(layout.CLASS_SUFFIXES)} behind it; others compute otherwise",
    )
