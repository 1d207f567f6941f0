"""The import of one folder: choices of the caller, result, and checks against the backbone."""

import json
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from pydantic import JsonValue
from torch import Tensor

from nunatak_contract.enums import HeadKind, LogitUse, OnLong, ProblemType, RankingScore, Reads
from nunatak_contract.errors import NunatakError
from nunatak_exchange.checkpoint import BASE_ADVICE, CONFIG, MAX_TOKENIZER_BYTES, Checkpoint
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
from nunatak_model.tokenizer_folder import (
    FILES,
    PARTS,
    SLOW_FILES,
    differing_parts,
    has_tokenizer,
    normalised,
    read_tokenizer,
)

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


@dataclass
class Import:
    """A foreign folder, the backbone that it shall run on, and the choices of the caller."""

    checkpoint: Checkpoint
    backbone: Backbone
    choices: ImportChoices

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
        checkpoint, backbone = self.checkpoint, self.backbone
        with tokenizer_files(checkpoint) as folder, checkpoint.backbone_errors():
            if is_adapter and not has_tokenizer(folder):
                return
            config = checkpoint.config if checkpoint.has(CONFIG) else {}
            # An adapter has no config.json, or one that names no model.
            config = {"model_type": backbone.config.model_type, **config}
            theirs = read_tokenizer(folder, config, num_token_types=backbone.config.num_token_types)
        ours = backbone.tokenizer
        own, other = normalised(ours.definition), normalised(theirs.definition)
        differing = differing_parts(own, other)
        if differing and _without_spaces(own) == _without_spaces(other):
            raise checkpoint.refuse(
                "its tokenizer and the backbone's differ in add_prefix_space, the space before a "
                "text's first word",
                f"{OWN_BACKBONE}, or with a copy of the backbone's folder that has the tokenizer "
                f"files of {checkpoint.folder.name}, on which other tasks trained with that "
                "tokenizer share layers",
            )
        # An adapter's folder has no weights of a backbone.
        advice = BASE_ADVICE if is_adapter else f"{BASE_ADVICE}, or {OWN_BACKBONE}"
        if differing:
            names = ", ".join("vocabulary" if part == "model" else part for part in differing)
            raise checkpoint.foreign(backbone, f"its tokenizer differs in: {names}", advice)
        if ours.tells_texts_apart != theirs.tells_texts_apart:
            gives = {True: "gives token types", False: "gives none"}
            raise checkpoint.foreign(
                backbone,
                f"its tokenizer {gives[theirs.tells_texts_apart]} to the texts of a pair, the "
                f"backbone's {gives[ours.tells_texts_apart]}",
                advice,
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


@contextmanager
def tokenizer_files(checkpoint: Checkpoint) -> Generator[Path]:
    """Yield a folder with the tokenizer's files alone, each read within its limit."""
    with tempfile.TemporaryDirectory() as scratch:
        more = {it.name for pattern in SLOW_FILES for it in checkpoint.folder.glob(pattern)}
        for name in {*more, *filter(checkpoint.has, FILES)}:
            data = checkpoint.read(name, limit=MAX_TOKENIZER_BYTES)
            (Path(scratch) / name).write_bytes(data)
        yield Path(scratch)


def _without_spaces(definition: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the parts that decide token ids, without the setting of the first space."""
    parts = {part: definition.get(part) for part in PARTS}
    for part in ("pre_tokenizer", "post_processor"):
        found = parts[part]
        if isinstance(found, dict):
            parts[part] = {name: it for name, it in found.items() if name != "add_prefix_space"}
    return parts
