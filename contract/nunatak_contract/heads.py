"""The parts of a head, and the meaning of its outputs."""

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from nunatak_contract.enums import (
    Activation,
    HeadKind,
    HeadNorm,
    Pooling,
    ProblemType,
    RankingScore,
)
from nunatak_contract.plain_text import visible
from nunatak_contract.record import Record, later

MAX_LABELS = 10_000
NO_DEFAULT_LABEL = "none"
DEFAULT_THRESHOLD = 0.5
"""The score from which a label of a multi-label task applies, if the task has no other."""


def _check_label(label: str) -> str:
    shown = visible(label)
    if shown != label:
        raise ValueError(
            "a label must be one line without control characters and marks of direction, "
            f"got '{shown}'; rename the label"
        )
    return label


Label = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_check_label)]


class DenseBlock(Record, frozen=True):
    """The block between pooling and output of a head: `norm(activation(dense(x)))`."""

    activation: Activation
    bias: bool
    norm: HeadNorm


TANH_BLOCK = DenseBlock(activation=Activation.TANH, bias=True, norm=HeadNorm.NONE)
"""BERT's pooler and RoBERTa's `classifier.dense`."""


class HeadRecord(Record, frozen=True):
    """The head: labels in the order of the logits, and the reading of the encoder's output.

    Only classification has labels. Regression has one label, the name of its value. Only sequence
    classification has a problem type. Heads that read tokens have no pooling.
    """

    kind: HeadKind = HeadKind.SEQUENCE_CLASSIFICATION
    problem_type: ProblemType | None = ProblemType.SINGLE_LABEL
    labels: Annotated[tuple[Label, ...], Field(max_length=MAX_LABELS)]
    pooling: Pooling | None
    dense: bool = Field(description="a dense block stands between pooling and output")
    bias: bool = later(
        default=True, description="whether the output has a bias; decoders have none"
    )
    padding_id: Annotated[int, Field(ge=0)] | None = later(
        None, "only for pooling last: the padding token, which never counts as the last"
    )
    block: DenseBlock = later(TANH_BLOCK, "what the dense block is made of")
    default_label: Label | None = later(
        None, "only for single labels: the label that means that nothing was found"
    )
    thresholds: dict[Label, Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=dict,
        # As for `later`, which makes no dictionaries.
        exclude_if=lambda thresholds: not thresholds,
        description="of several labels: the score from which a label applies; absent: 0.5",
    )
    score: RankingScore = later(
        RankingScore.SIGMOID, "ranking: what logits become unless a request says otherwise"
    )

    @property
    def num_outputs(self) -> int:
        """The number of logits of a text, or of each token."""
        return self.kind.fixed_outputs or len(self.labels)

    def threshold(self, label: str) -> float:
        """The score from which a label of a multi-label task applies."""
        return self.thresholds.get(label, DEFAULT_THRESHOLD)

    @model_validator(mode="after")
    def _labels_are_unique(self) -> "HeadRecord":
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("labels must be unique")
        return self

    @model_validator(mode="after")
    def _default_label_is_one(self) -> "HeadRecord":
        if self.default_label is None:
            return self
        if self.problem_type is not ProblemType.SINGLE_LABEL:
            raise ValueError(
                "only a task that gives each text one label has a default label, "
                f"got {self.default_label!r} for {self.problem_type or self.kind}"
            )
        if self.default_label not in self.labels:
            raise ValueError(f"the default label must be a label, got {self.default_label!r}")
        return self

    @model_validator(mode="after")
    def _thresholds_are_of_our_labels(self) -> "HeadRecord":
        if self.thresholds and self.problem_type is not ProblemType.MULTI_LABEL:
            raise ValueError(
                "only a task that gives each text several labels has thresholds, "
                f"got {len(self.thresholds)} for {self.problem_type or self.kind}"
            )
        if unknown := self.thresholds.keys() - set(self.labels):
            raise ValueError(f"a threshold must be of a label, got {min(unknown)!r}")
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
        if self.padding_id is not None and self.pooling is not Pooling.LAST:
            raise ValueError(f"only pooling last has a padding_id, got pooling {self.pooling}")
        if self.score is not RankingScore.SIGMOID and self.kind is not HeadKind.RANKING:
            raise ValueError(f"only a ranking has a score, got {self.score} for {self.kind}")
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
