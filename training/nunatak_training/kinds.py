"""Kinds of task: the fields of a row of each kind, the detection of the kind, and the metrics."""

from collections.abc import Mapping
from enum import StrEnum

from nunatak_contract.enums import HeadKind, ProblemType
from nunatak_contract.errors import NunatakError


class TaskKind(StrEnum):
    """The kind of prediction for a text."""

    SINGLE_LABEL = "single-label"
    MULTI_LABEL = "multi-label"
    REGRESSION = "regression"
    TOKEN_CLASSIFICATION = "token-classification"  # noqa: S105 - a kind, no secret
    QUESTION_ANSWERING = "question-answering"
    RANKING = "ranking"

    @property
    def head(self) -> HeadKind:
        match self:
            case TaskKind.SINGLE_LABEL | TaskKind.MULTI_LABEL | TaskKind.REGRESSION:
                return HeadKind.SEQUENCE_CLASSIFICATION
            case TaskKind.TOKEN_CLASSIFICATION:
                return HeadKind.TOKEN_CLASSIFICATION
            case TaskKind.QUESTION_ANSWERING:
                return HeadKind.QUESTION_ANSWERING
            case TaskKind.RANKING:
                return HeadKind.RANKING

    @property
    def problem_type(self) -> ProblemType | None:
        """The problem type of a sequence classification; None for other heads."""
        match self:
            case TaskKind.SINGLE_LABEL:
                return ProblemType.SINGLE_LABEL
            case TaskKind.MULTI_LABEL:
                return ProblemType.MULTI_LABEL
            case TaskKind.REGRESSION:
                return ProblemType.REGRESSION
            case _:
                return None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a row must have; a query has one `document` or many `documents`."""
        match self:
            case TaskKind.SINGLE_LABEL | TaskKind.REGRESSION:
                return "text", "label"
            case TaskKind.MULTI_LABEL:
                return "text", "labels"
            case TaskKind.TOKEN_CLASSIFICATION:
                return "tokens", "tags"
            case TaskKind.QUESTION_ANSWERING:
                return "question", "context", "answers"
            case TaskKind.RANKING:
                return ("query",)


_TELLING_COLUMNS = {
    "labels": TaskKind.MULTI_LABEL,
    "tokens": TaskKind.TOKEN_CLASSIFICATION,
    "context": TaskKind.QUESTION_ANSWERING,
}


def kind_of_row(row: Mapping[str, object]) -> TaskKind:
    """Return the kind of a task by its first row: by the columns, and by the type of a label.

    A `label` that is a number with a decimal point is a value to predict; all others are names.
    """
    if "query" in row:
        return TaskKind.RANKING
    if "label" in row:
        is_value = isinstance(row["label"], float)
        return TaskKind.REGRESSION if is_value else TaskKind.SINGLE_LABEL
    for column, kind in _TELLING_COLUMNS.items():
        if column in row:
            return kind
    return TaskKind.SINGLE_LABEL


def kind_named(name: str | None) -> TaskKind | None:
    """Return the kind of task of a name, or None without a name."""
    if name is not None and name not in set(TaskKind):
        raise NunatakError(
            "invalid_option", problem=f"kind must be one of {', '.join(TaskKind)}, got {name!r}"
        )
    return None if name is None else TaskKind(name)


class Metric(StrEnum):
    """A score. For every metric, larger is better."""

    ACCURACY = "accuracy"
    F1 = "f1"
    F1_MACRO = "f1_macro"
    F1_MICRO = "f1_micro"
    MATTHEWS_CORRELATION = "matthews_correlation"
    PEARSON = "pearson"
    SPEARMAN = "spearman"
    ENTITY_F1 = "entity_f1"
    SPAN_F1 = "span_f1"
    EXACT_MATCH = "exact_match"
    NDCG = "ndcg"
    MRR = "mrr"
