"""The manifest: the complete, immutable description of a task version."""

import hashlib
from datetime import datetime
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, model_validator

from nunatak_contract.enums import HeadKind, OnLong, ProblemType, Reads, TensorDtype
from nunatak_contract.evidence import (
    CalibrationRecord,
    ConfusionRecord,
    DataRecord,
    MetricRecord,
    ProbeRecord,
    RecipeRecord,
    TeacherRecord,
)
from nunatak_contract.heads import HeadRecord
from nunatak_contract.methods import Method
from nunatak_contract.names import Digest, TaskName
from nunatak_contract.record import Record, later

MIN_WINDOW_TOKENS = 8
"""Room for the special tokens of a pair, and for a few tokens of a question and its context."""


MAX_NOTE_CHARS = 4096
Note = Annotated[str, Field(max_length=MAX_NOTE_CHARS)]
"""A remark to keep with a version."""


class BackboneRecord(Record, frozen=True):
    """The backbone of a task version.

    The digest identifies the backbone; the name is for people.
    """

    name: Annotated[str, Field(min_length=1, max_length=200)]
    digest: Digest
    num_layers: Annotated[int, Field(ge=1, le=1000)]
    hidden_width: Annotated[int, Field(ge=1, le=1_000_000)]
    num_parameters: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="of embeddings and layers"
    )


class BlobRecord(Record, frozen=True):
    """One content-addressed file."""

    role: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")] = "parameters"
    sha256: Digest
    size_bytes: Annotated[int, Field(ge=1)]


class ParameterCounts(Record, frozen=True):
    """Numbers of parameters (not bytes) the task version owns."""

    branch: Annotated[int, Field(ge=0)]
    head: Annotated[int, Field(ge=0)]


class TaskDraft(Record, frozen=True):
    """A task version before the registry gives it a number."""

    schema_version: Literal[1] = 1
    task: TaskName
    head: HeadRecord
    method: Method
    split_depth: Annotated[int, Field(ge=0, le=1000)] | None = Field(
        description="first layer that differs from the backbone; null for a full copy"
    )
    backbone: BackboneRecord
    tokenizer_digest: Digest
    max_length: Annotated[int, Field(ge=1, le=1_000_000, description="tokens")]
    reads: Reads | None = later(
        None, "of sequence classification: a single text or a pair; null: both"
    )
    on_long: OnLong | None = later(
        None,
        "treatment of longer texts; null: cut for documents to rank, windows for all other texts",
    )
    dtype: TensorDtype
    parameter_counts: ParameterCounts
    blobs: Annotated[tuple[BlobRecord, ...], Field(min_length=1, max_length=16)]
    probe: ProbeRecord
    data: DataRecord | None = None
    recipe: RecipeRecord | None = None
    metrics: tuple[MetricRecord, ...] = ()
    test_metrics: tuple[MetricRecord, ...] = later(
        (), "of examples that training neither learnt from nor chose by"
    )
    confusion: ConfusionRecord | None = None
    calibration: CalibrationRecord | None = later(None)
    teacher: TeacherRecord | None = later(None)
    created_at: datetime
    note: Note = ""

    @model_validator(mode="after")
    def _windows_hold_something(self) -> "TaskDraft":
        if self.head.kind.reads_tokens and self.max_length < MIN_WINDOW_TOKENS:
            raise ValueError(
                f"max_length of a {self.head.kind} task must be at least {MIN_WINDOW_TOKENS} "
                f"tokens, got {self.max_length}"
            )
        return self

    @model_validator(mode="after")
    def _confusion_is_of_our_labels(self) -> "TaskDraft":
        if self.confusion is not None:
            named = {label for pair in self.confusion.counts for label in pair}
            if unknown := named.difference(self.head.labels):
                raise ValueError(f"the confusion matrix names {min(unknown)!r}, which is no label")
        return self

    @model_validator(mode="after")
    def _calibration_is_of_our_labels(self) -> "TaskDraft":
        if self.calibration is None:
            return self
        if self.head.problem_type not in {ProblemType.SINGLE_LABEL, ProblemType.MULTI_LABEL}:
            raise ValueError(
                "only a task that classifies whole texts has a calibration, got one for "
                f"{self.head.problem_type or self.head.kind}"
            )
        named = tuple(curve.label for curve in self.calibration.curves)
        if named != self.head.labels:
            raise ValueError("a calibration must have one curve for each label, in their order")
        return self

    @model_validator(mode="after")
    def _other_heads_read_their_own_inputs(self) -> "TaskDraft":
        if self.reads is not None and self.head.kind is not HeadKind.SEQUENCE_CLASSIFICATION:
            raise ValueError(
                f"only sequence classification reads a single text or a pair, got reads "
                f"{self.reads} for {self.head.kind}"
            )
        return self

    @model_validator(mode="after")
    def _tokens_are_read_whole(self) -> "TaskDraft":
        if self.on_long not in {None, OnLong.WINDOWS} and self.head.kind.reads_tokens:
            raise ValueError(
                f"a {self.head.kind} task reads long texts as windows, got on_long {self.on_long}"
            )
        return self

    @property
    def reads_long(self) -> OnLong:
        """The treatment of longer texts if a request does not choose one."""
        if self.on_long is not None:
            return self.on_long
        return OnLong.CUT if self.head.kind is HeadKind.RANKING else OnLong.WINDOWS

    def content_digest(self) -> str:
        """SHA-256 of all fields except times and number: equal content is the same version."""
        left_out: dict[str, bool | set[str]] = {"created_at": True, "version": True}
        # Added after version 1 of the schema: content without these fields keeps its digest.
        if self.confusion is None:
            left_out["confusion"] = True
        if self.backbone.num_parameters is None:
            left_out["backbone"] = {"num_parameters"}
        if self.teacher is not None:
            left_out["teacher"] = {"seconds"}
        return hashlib.sha256(self.model_dump_json(exclude=left_out).encode()).hexdigest()


class TaskManifest(TaskDraft, frozen=True):
    """One published, immutable task version."""

    version: Annotated[int, Field(ge=1)]

    @property
    def reference(self) -> str:
        """The reference that names exactly this version."""
        return f"{self.task}/{self.version}"

    @cached_property
    def content(self) -> str:
        """The content digest, computed once. After a restore, a registry may reuse a number."""
        return self.content_digest()

    def blob(self, role: str) -> BlobRecord | None:
        """The blob with this role; None if there is none."""
        return next((blob for blob in self.blobs if blob.role == role), None)
