"""The manifest: everything that is true of one task version, as immutable JSON.

A `TaskDraft` is what a publisher hands in; the registry adds the version and thereby makes it a
`TaskManifest`. Both are frozen, and neither accepts a field it does not know.
"""

import hashlib
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, JsonValue, model_validator

from nunatak_registry.names import Digest, TaskName

MAX_LABELS = 10_000
MIN_WINDOW_TOKENS = 8
"""Special tokens of a pair, and a few to share between a question and its context."""

MAX_CONFUSION_CELLS = 100_000

Label = Annotated[str, Field(min_length=1, max_length=200)]
ProbeText = Annotated[str, Field(max_length=4096)]
ProbeInput = ProbeText | tuple[ProbeText, ProbeText]
ProbeLogits = tuple[FiniteFloat, ...] | tuple[tuple[FiniteFloat, ...], ...]


class Record(BaseModel):
    """Base of everything stored: frozen, strict about fields, NaN-free."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TensorDtype(StrEnum):
    """Number format of the stored parameters, in safetensors' spelling of torch's names."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class HeadKind(StrEnum):
    """What the head predicts."""

    SEQUENCE_CLASSIFICATION = "sequence_classification"
    TOKEN_CLASSIFICATION = "token_classification"  # noqa: S105 - a kind, no secret
    QUESTION_ANSWERING = "question_answering"
    RANKING = "ranking"

    @property
    def reads_tokens(self) -> bool:
        """Whether logits are given for every token, rather than once for a text."""
        return self in {HeadKind.TOKEN_CLASSIFICATION, HeadKind.QUESTION_ANSWERING}


class ProblemType(StrEnum):
    """What sequence classification predicts (names as in transformers' `problem_type`)."""

    SINGLE_LABEL = "single_label_classification"
    MULTI_LABEL = "multi_label_classification"
    REGRESSION = "regression"


class Pooling(StrEnum):
    """How the token vectors of a text become one vector."""

    MEAN = "mean"
    FIRST = "first"


class Activation(StrEnum):
    """Non-linearity of an adapter or of a head's dense block (names as in transformers)."""

    GELU = "gelu"
    GELU_TANH = "gelu_new"
    RELU = "relu"
    TANH = "tanh"
    SILU = "silu"
    LEAKY_RELU = "leaky_relu"


class HeadNorm(StrEnum):
    """Layer norm of a head's dense block."""

    NONE = "none"
    GAIN = "gain"
    GAIN_AND_OFFSET = "gain_and_offset"


class LoraTarget(StrEnum):
    """The linear maps of a layer that can carry a low-rank update."""

    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    ATTENTION_OUTPUT = "attention_output"
    FEEDFORWARD_IN = "feedforward_in"
    FEEDFORWARD_OUT = "feedforward_out"


class DenseBlockRecord(Record):
    """What stands between pooling and output of a head."""

    activation: Activation
    bias: bool
    norm: HeadNorm


TANH_BLOCK = DenseBlockRecord(activation=Activation.TANH, bias=True, norm=HeadNorm.NONE)
"""BERT's pooler and RoBERTa's `classifier.dense`."""


class HeadRecord(Record):
    """The head: labels in the order of its logits, and how it reads the encoder's output.

    Only classification has labels; regression names its one value by one. Only sequence
    classification has a problem type. Heads that read tokens have no pooling.
    """

    kind: HeadKind = HeadKind.SEQUENCE_CLASSIFICATION
    problem_type: ProblemType | None = ProblemType.SINGLE_LABEL
    labels: Annotated[tuple[Label, ...], Field(max_length=MAX_LABELS)]
    pooling: Pooling | None
    dense: bool = Field(description="a dense block stands between pooling and output")
    # Left out where default: equal content has the digest that it had before this field.
    block: DenseBlockRecord = Field(
        default=TANH_BLOCK,
        exclude_if=TANH_BLOCK.__eq__,
        description="what the dense block is made of",
    )

    @property
    def num_outputs(self) -> int:
        """Logits of a text, or of each token."""
        match self.kind:
            case HeadKind.SEQUENCE_CLASSIFICATION | HeadKind.TOKEN_CLASSIFICATION:
                return len(self.labels)
            case HeadKind.QUESTION_ANSWERING:
                return 2
            case HeadKind.RANKING:
                return 1

    @model_validator(mode="after")
    def _labels_are_unique(self) -> "HeadRecord":
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("labels must be unique")
        return self

    @model_validator(mode="after")
    def _fits_its_kind(self) -> "HeadRecord":
        is_sequence_classification = self.kind is HeadKind.SEQUENCE_CLASSIFICATION
        if (self.problem_type is not None) != is_sequence_classification:
            raise ValueError(
                "sequence classification has a problem_type and no other kind has, "
                f"got {self.problem_type} for {self.kind}"
            )
        if (self.pooling is None) != self.kind.reads_tokens:
            raise ValueError(
                "heads that read tokens have no pooling and all others have one, "
                f"got {self.pooling} for {self.kind}"
            )
        if not self.dense and self.block != TANH_BLOCK:
            raise ValueError(f"a head that is not dense has no block, got {self.block!r}")
        fewest, most = self._label_bounds()
        if not fewest <= len(self.labels) <= most:
            raise ValueError(
                f"expected {fewest} to {most} labels for {self.problem_type or self.kind}, "
                f"got {len(self.labels)}"
            )
        return self

    def _label_bounds(self) -> tuple[int, int]:
        match self.kind, self.problem_type:
            case HeadKind.SEQUENCE_CLASSIFICATION, ProblemType.REGRESSION:
                return 1, 1
            case HeadKind.SEQUENCE_CLASSIFICATION, ProblemType.MULTI_LABEL:
                return 1, MAX_LABELS
            case ((HeadKind.SEQUENCE_CLASSIFICATION | HeadKind.TOKEN_CLASSIFICATION), _):
                return 2, MAX_LABELS
            case ((HeadKind.QUESTION_ANSWERING | HeadKind.RANKING), _):
                return 0, 0


class TopKRecord(Record):
    """Own copies of the top `num_layers` layers (Lee et al. 2019, arXiv:1911.03090)."""

    kind: Literal["topk"] = "topk"
    num_layers: Annotated[int, Field(ge=1, le=1000)]


class HeadOnlyRecord(Record):
    """Nothing but a head; the whole backbone is trunk."""

    kind: Literal["head"] = "head"


class AdaptedBlocks(StrEnum):
    """Which blocks of a layer have a bottleneck adapter."""

    BOTH = "both"
    ATTENTION = "attention"
    FEEDFORWARD = "feedforward"


class AdapterInput(StrEnum):
    """What a bottleneck adapter reads."""

    BLOCK = "block"
    NORMED_SUM = "normed_sum"


class Norms(StrEnum):
    """Whose the layer norms after adapted blocks are: the task's own or the backbone's."""

    OWN = "own"
    FROZEN = "frozen"


class BottleneckRecord(Record):
    """Bottleneck adapters from `first_layer` up; by default those of He et al. 2021, eq. 1."""

    kind: Literal["bottleneck"] = "bottleneck"
    size: Annotated[int, Field(ge=1, le=65_536)]
    first_layer: Annotated[int, Field(ge=0, le=1000)] = 0
    blocks: AdaptedBlocks = AdaptedBlocks.BOTH
    reads: AdapterInput = AdapterInput.BLOCK
    activation: Activation = Activation.TANH
    norms: Norms = Norms.OWN


class LoraRecord(Record):
    """Low-rank updates of attention and feed-forward projections (Hu et al. 2021)."""

    kind: Literal["lora"] = "lora"
    rank: Annotated[int, Field(ge=1, le=65_536)]
    alpha: Annotated[FiniteFloat, Field(gt=0)]
    targets: Annotated[tuple[LoraTarget, ...], Field(min_length=1, max_length=6)]
    first_layer: Annotated[int, Field(ge=0, le=1000)] = 0


class FullRecord(Record):
    """A full copy: embeddings and every layer are the task's own."""

    kind: Literal["full"] = "full"


MethodRecord = Annotated[
    TopKRecord | HeadOnlyRecord | BottleneckRecord | LoraRecord | FullRecord,
    Field(discriminator="kind"),
]


class BackboneRecord(Record):
    """The backbone a task version was trained on; the digest decides, the name is for people."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    digest: Digest
    num_layers: Annotated[int, Field(ge=1, le=1000)]
    hidden_width: Annotated[int, Field(ge=1, le=1_000_000)]
    num_parameters: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="of embeddings and layers"
    )


class BlobRecord(Record):
    """One content-addressed file."""

    role: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")] = "parameters"
    sha256: Digest
    size_bytes: Annotated[int, Field(ge=1)]


class ParameterCounts(Record):
    """Numbers of parameters (not bytes) the task version owns."""

    branch: Annotated[int, Field(ge=0)]
    head: Annotated[int, Field(ge=0)]


class DataRecord(Record):
    """The examples a version was trained and chosen on."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    train_digest: Digest
    dev_digest: Digest
    num_train: Annotated[int, Field(ge=1)]
    num_dev: Annotated[int, Field(ge=1)]


class RecipeRecord(Record):
    """How a version was trained: the settings in full, and their digest."""

    settings: dict[str, JsonValue]
    digest: Digest


class MetricRecord(Record):
    """One score and the data it was measured on."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    value: FiniteFloat
    interval: tuple[FiniteFloat, FiniteFloat] | None = Field(
        default=None,
        description="at 95 %, by bootstrap over the examples",
        # Younger than the schema: content without it keeps the digest it has always had.
        exclude_if=lambda interval: interval is None,
    )
    data_digest: Digest
    num_examples: Annotated[int, Field(ge=1)]


class ConfusionCell(Record):
    """How often one label was predicted where another, or the same, was true."""

    truth: Label
    predicted: Label
    count: Annotated[int, Field(ge=1)]


class ConfusionRecord(Record):
    """The confusion matrix of a data set; pairs of labels that never met are left out."""

    data_digest: Digest
    cells: Annotated[tuple[ConfusionCell, ...], Field(min_length=1, max_length=MAX_CONFUSION_CELLS)]

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """Counts by true and predicted label."""
        return {(cell.truth, cell.predicted): cell.count for cell in self.cells}

    @model_validator(mode="after")
    def _no_pair_twice(self) -> "ConfusionRecord":
        if len(self.counts) != len(self.cells):
            raise ValueError("a confusion matrix must name each pair of labels once")
        return self


class ProbeRecord(Record):
    """A few inputs with the logits they must give: run before a version is served.

    A pair is a question with its context, or a query with a document, where the head reads such.
    """

    inputs: Annotated[tuple[ProbeInput, ...], Field(min_length=1, max_length=32)]
    logits: tuple[ProbeLogits, ...] = Field(description="per token for heads that read tokens")
    tolerance: Annotated[FiniteFloat, Field(gt=0, le=1)] = 1e-4

    @model_validator(mode="after")
    def _one_row_of_logits_per_input(self) -> "ProbeRecord":
        if len(self.logits) != len(self.inputs):
            raise ValueError(f"{len(self.inputs)} probe inputs, but {len(self.logits)} logit rows")
        return self

    @model_validator(mode="after")
    def _tokens_have_equally_many_logits(self) -> "ProbeRecord":
        for row in self.logits:
            if len({len(token) for token in row if isinstance(token, tuple)}) > 1:
                raise ValueError("the tokens of a probe input must have equally many logits")
        return self


class TaskDraft(Record):
    """A task version before the registry has numbered it."""

    schema_version: Literal[1] = 1
    task: TaskName
    head: HeadRecord
    method: MethodRecord
    split_depth: Annotated[int, Field(ge=0, le=1000)] | None = Field(
        description="first layer that differs from the backbone; null for a full copy"
    )
    backbone: BackboneRecord
    tokenizer_digest: Digest
    max_length: Annotated[int, Field(ge=1, le=1_000_000, description="tokens")]
    dtype: TensorDtype
    parameter_counts: ParameterCounts
    blobs: Annotated[tuple[BlobRecord, ...], Field(min_length=1, max_length=16)]
    probe: ProbeRecord
    data: DataRecord | None = None
    recipe: RecipeRecord | None = None
    metrics: tuple[MetricRecord, ...] = ()
    confusion: ConfusionRecord | None = None
    created_at: datetime
    note: Annotated[str, Field(max_length=4096)] = ""

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

    def content_digest(self) -> str:
        """SHA-256 over everything but the time of creation: equal content is the same version."""
        left_out: dict[str, bool | set[str]] = {"created_at": True, "version": True}
        # Younger than the schema: content without them keeps the digest it has always had.
        if self.confusion is None:
            left_out["confusion"] = True
        if self.backbone.num_parameters is None:
            left_out["backbone"] = {"num_parameters"}
        return hashlib.sha256(self.model_dump_json(exclude=left_out).encode()).hexdigest()


class TaskManifest(TaskDraft):
    """One published, immutable task version."""

    version: Annotated[int, Field(ge=1)]

    @property
    def reference(self) -> str:
        """The reference that names exactly this version."""
        return f"{self.task}/{self.version}"

    def blob(self, role: str) -> BlobRecord | None:
        """The blob that plays `role`, if there is one."""
        return next((blob for blob in self.blobs if blob.role == role), None)
