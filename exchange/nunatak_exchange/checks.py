"""The import of one folder: choices of the caller, result, and checks against the backbone."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Final

from pydantic import JsonValue
from tokenizers import Tokenizer
from torch import Tensor

from nunatak_contract.enums import HeadKind, LogitUse, OnLong, ProblemType, RankingScore, Reads
from nunatak_contract.errors import NunatakError
from nunatak_exchange.checkpoint import CONFIG, Checkpoint
from nunatak_exchange.transformers_layout import FAMILIES, usual_problem_type
from nunatak_model import (
    INT8_SUFFIX,
    Backbone,
    BackboneConfig,
    BranchSpec,
    CorruptBackboneError,
    HeadSpec,
    UnsupportedBackboneError,
)
from nunatak_model.architectures import config_from
from nunatak_model.text.tokenizer import check_bounds
from nunatak_model.tokenizer_settings import (
    SAVE_ADVICE,
    TOKENIZER,
    check_settings,
    definition_of,
    gives_token_types,
)

TOKENIZING_PARTS: Final = ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "model")
"""Parts that decide token ids. Saved truncation and padding do not: each task has its length."""
OWN_BACKBONE: Final = "import and serve it with its own folder as the backbone (--backbone)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportChoices:
    """Choices of the caller. Where a field is None, the folder decides."""

    labels: tuple[str, ...] | None = None
    """The labels in the order of the logits."""
    problem_type: ProblemType | None = None
    """Only for sequence classification: a model with a problem type is no ranking."""
    logit_use: LogitUse | None = None
    default_label: str | None = None
    """The label that means that nothing was found; None or `none`: no label does."""
    thresholds: Mapping[str, float] | None = None
    """The score from which a label of a multi-label task applies, by label; None: 0.5."""
    reads: Reads | None = None
    """None: a single text and a pair."""
    on_long: OnLong | None = None
    allows_other_base: bool = False
    """Whether to accept an adapter that names another base than the backbone, or none."""


AS_THE_FOLDER_SAYS: Final = ImportChoices()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTask:
    """The content of a foreign folder: what `draft_task` needs but name, probe and provenance."""

    spec: BranchSpec
    labels: tuple[str, ...]
    problem_type: ProblemType | None
    parameters: Mapping[str, Tensor]
    """In float32."""
    max_length: int | None
    """The longest input in tokens; None: the folder gives no length."""
    source: str
    """Findings of the import, for people."""
    score: RankingScore = RankingScore.SIGMOID
    """Only for a ranking: the function that makes a score of the logit."""
    base: str | None = None
    """Only for an adapter: the base model that the folder names."""


def check_exact(backbone: Backbone) -> None:
    """Refuse a quantized backbone: other programs compute other numbers."""
    if backbone.is_quantized:
        original = backbone.name.removesuffix(INT8_SUFFIX)
        raise UnsupportedBackboneError(
            f"{backbone.name!r} computes in integers and other programs do not, so their answers "
            f"would differ; use {original!r} for import and export"
        )


class Import:
    """A foreign folder, the backbone that it shall run on, and the choices of the caller."""

    def __init__(self, checkpoint: Checkpoint, backbone: Backbone, choices: ImportChoices) -> None:
        self.checkpoint = checkpoint
        self.backbone = backbone
        self.choices = choices

    @cached_property
    def config(self) -> BackboneConfig:
        raw = self.checkpoint.config
        if str(raw.get("model_type")) not in FAMILIES:
            raise self.checkpoint.refuse(
                f"its model_type is {raw.get('model_type')!r}",
                f"checkpoints are read of {', '.join(FAMILIES)}",
            )
        try:
            return config_from(raw)
        except CorruptBackboneError as error:
            problem = str(error).removeprefix(f"{CONFIG} ")
            raise self.checkpoint.corrupt(CONFIG, problem) from error

    def check_shape(self) -> None:
        theirs, ours = self.config, self.backbone.config
        if replace(theirs, vocab_size=ours.vocab_size) == ours != theirs:
            raise self.checkpoint.refuse(
                f"its embeddings have {theirs.vocab_size} tokens, those of backbone "
                f"{self.backbone.name!r} have {ours.vocab_size} (tokens were added, or the "
                "embeddings were resized)",
                OWN_BACKBONE,
            )
        # Of both shapes, only the fields that describe the encoder, and not the head.
        both = fields(ours) if type(theirs) is type(ours) else fields(BackboneConfig)
        of_head = {"dense_block", *(["padding_id"] if ours.is_causal else [])}
        differences = [
            f"its {it.name} is {getattr(theirs, it.name)}, the backbone's is "
            f"{getattr(ours, it.name)}"
            for it in both
            if it.compare
            and it.name not in of_head
            and getattr(theirs, it.name) != getattr(ours, it.name)
        ]
        if differences:
            raise self.checkpoint.foreign(self.backbone, "; ".join(differences))

    def check_tokenizer(self, *, is_adapter: bool = False) -> None:
        """Refuse a folder whose tokenizer may give other token ids or types than the backbone's.

        An adapter's folder may leave the tokenizer to its base.
        """
        checkpoint, settings = self.checkpoint, self.checkpoint.settings
        with checkpoint.backbone_errors():
            data = definition_of(checkpoint.tokenizer_file, self._reading_config(), settings)
        if data is not None:
            self._check_definition(data)
        elif not is_adapter:
            raise checkpoint.invalid(f"it has no {TOKENIZER}; {SAVE_ADVICE}")
        if data is not None or settings:
            self._check_reading()

    def _check_definition(self, data: bytes) -> None:
        checkpoint = self.checkpoint
        with checkpoint.failures(
            lambda it: checkpoint.corrupt(TOKENIZER, f"is no tokenizer: {it}")
        ):
            definition = data.decode()
            with checkpoint.backbone_errors():
                check_bounds(json.loads(definition))
            theirs = _normalised(definition)
        ours = _normalised(self.backbone.tokenizer.definition)
        differing = [part for part in TOKENIZING_PARTS if ours.get(part) != theirs.get(part)]
        if differing and _without_spaces(ours) == _without_spaces(theirs):
            raise checkpoint.refuse(
                "its tokenizer and the backbone's differ in add_prefix_space, the space before a "
                "text's first word",
                f"{OWN_BACKBONE}, or with a copy of the backbone's folder that has the tokenizer "
                f"files of {checkpoint.folder.name}, on which other tasks trained with that "
                "tokenizer share layers",
            )
        if differing:
            names = ", ".join("vocabulary" if part == "model" else part for part in differing)
            raise checkpoint.foreign(self.backbone, f"its tokenizer differs in: {names}")

    def _reading_config(self) -> dict[str, JsonValue]:
        found = self.checkpoint.config if self.checkpoint.has(CONFIG) else {}
        return {"model_type": self.backbone.config.model_type, **found}

    def _check_reading(self) -> None:
        """Refuse other settings of reading texts; for missing files, the backbone's count."""
        checkpoint, backbone, config = self.checkpoint, self.backbone, self._reading_config()
        ours = backbone.tokenizer.tells_texts_apart
        with checkpoint.backbone_errors():
            check_settings(config, checkpoint.settings, checkpoint.definition(backbone))
            if not ours and not _drops_types(backbone):
                return
            theirs = gives_token_types(config, checkpoint.settings)
        if ours != theirs:
            gives = {True: "gives token types", False: "gives none"}
            raise checkpoint.foreign(
                backbone,
                f"its tokenizer {gives[theirs]} to the texts of a pair, the backbone's "
                f"{gives[ours]}",
            )

    def check_base(self, named: str | None) -> None:
        """Refuse an adapter of another base. It holds no weights of it, so names must do."""
        backbone = self.backbone
        ours = {_last_part(backbone.name), _last_part(backbone.source.partition("@")[0])}
        if named and _last_part(named) in ours:
            return
        found = f"it was trained on {named!r}" if named else "it does not name its base model"
        raise self.checkpoint.foreign(
            backbone,
            f"{found}, and only the name distinguishes bases of equal shape (if this "
            "backbone is the base, use --allow-other-base)",
        )

    @cached_property
    def named_problem_type(self) -> ProblemType | None:
        named = self.checkpoint.meaning.problem_type
        if self.choices.problem_type is not None or named is None:
            return self.choices.problem_type
        if named in set(ProblemType):
            return ProblemType(named)
        raise self.checkpoint.refuse(
            f"problem_type in config.json is {named!r}",
            f"expected one of {', '.join(ProblemType)}; say which with --problem-type",
        )

    def problem_type(self, head: HeadSpec) -> ProblemType | None:
        """One logit is a label's, unless a regression is named (transformers' rule)."""
        said = self.named_problem_type
        if head.kind is not HeadKind.SEQUENCE_CLASSIFICATION:
            return None
        if said is ProblemType.REGRESSION and head.num_labels > 1:
            raise self.checkpoint.refuse(
                f"it is a regression to {head.num_labels} numbers",
                "a regression task gives one number; train one model for each, or name another "
                "--problem-type if the logits are those of labels",
            )
        return said or usual_problem_type(head)

    def labels(self, head: HeadSpec, stored: Mapping[str, JsonValue] | None) -> tuple[str, ...]:
        """The caller's labels, else the folder's; none where the kind of head gives the meaning."""
        given = self.choices.labels
        if head.kind.fixed_outputs is not None:
            if given is not None:
                raise self.checkpoint.refuse(
                    f"a {head.kind.replace('_', ' ')} task has no labels, got {', '.join(given)}",
                    "leave out --labels",
                )
            return ()
        if given is not None:
            stored = {str(index): label for index, label in enumerate(given)}
        named = stored or {}
        labels = [
            it for index in range(head.num_labels) if isinstance(it := named.get(str(index)), str)
        ]
        if len(named) != head.num_labels or len(set(labels)) != head.num_labels:
            text = json.dumps(dict(named), ensure_ascii=False)
            raise NunatakError(
                "unknown_labels",
                folder=self.checkpoint.folder.name,
                num_labels=head.num_labels,
                found="the folder names none" if stored is None else f"got {text[:200]}",
            )
        return tuple(labels)


def _last_part(name: str) -> str:
    return name.replace("\\", "/").rstrip("/").rpartition("/")[2].lower()


def _drops_types(backbone: Backbone) -> bool:
    """Whether `tokenizer.json` gives token types that the encoder has and does not get."""
    if backbone.config.num_token_types == 1:
        return False
    tokenizer = Tokenizer.from_str(backbone.tokenizer.definition)
    tokenizer.no_truncation()
    return any(tokenizer.encode("a", "a").type_ids)


def _without_spaces(definition: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the parts that decide token ids, without the setting of the first space."""
    parts = {part: definition.get(part) for part in TOKENIZING_PARTS}
    for part in ("pre_tokenizer", "post_processor"):
        found = parts[part]
        if isinstance(found, dict):
            parts[part] = {name: it for name, it in found.items() if name != "add_prefix_space"}
    return parts


def _normalised(definition: str) -> dict[str, JsonValue]:
    # The installed library reads and writes both definitions, so that old spellings become equal.
    return json.loads(Tokenizer.from_str(definition).to_str())
