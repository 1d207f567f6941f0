"""Kinds of task: the fields of a row of each kind, the detection of the kind, and the metrics."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Self

from nunatak_contract.enums import HeadKind, ProblemType
from nunatak_contract.errors import invalid_option
from nunatak_contract.heads import HeadRecord

_TEXTS = HeadKind.SEQUENCE_CLASSIFICATION


class TaskKind(StrEnum):
    """The kinds, each with its head, the columns that its rows need, and its problem type."""

    head: HeadKind
    columns: tuple[str, ...]
    problem_type: ProblemType | None

    SINGLE_LABEL = "single-label", _TEXTS, ("text", "label"), ProblemType.SINGLE_LABEL
    MULTI_LABEL = "multi-label", _TEXTS, ("text", "labels"), ProblemType.MULTI_LABEL
    REGRESSION = "regression", _TEXTS, ("text", "label"), ProblemType.REGRESSION
    TOKEN_CLASSIFICATION = "token-classification", HeadKind.TOKEN_CLASSIFICATION, ("tokens", "tags")
    QUESTION_ANSWERING = (
        "question-answering",
        HeadKind.QUESTION_ANSWERING,
        ("question", "context", "answers"),
    )
    RANKING = "ranking", HeadKind.RANKING, ("query",)

    def __new__(
        cls,
        value: str,
        head: HeadKind,
        columns: tuple[str, ...],
        problem_type: ProblemType | None = None,
    ) -> Self:
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.head, kind.columns, kind.problem_type = head, columns, problem_type
        return kind

    @property
    def needed(self) -> str:
        if self.head is HeadKind.RANKING:
            return "'query', 'document', 'label' (or 'query', 'documents', 'relevance')"
        *others, last = map(repr, self.columns)
        if self.head is _TEXTS:
            return f"{', '.join(others)}, {last} and, for pairs, 'text_pair'"
        return f"{', '.join(others)} and {last}"


_TELLING_COLUMNS = {
    "labels": TaskKind.MULTI_LABEL,
    "tokens": TaskKind.TOKEN_CLASSIFICATION,
    "context": TaskKind.QUESTION_ANSWERING,
}


def kind_of_head(head: HeadRecord) -> TaskKind:
    own = (head.kind, head.problem_type)
    return next(it for it in TaskKind if (it.head, it.problem_type) == own)


def kind_of_row(row: Mapping[str, object]) -> TaskKind:
    """By the columns, and by the type of a label: a number with a decimal point is a value."""
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
    if name is not None and name not in set(TaskKind):
        raise invalid_option(f"kind must be one of {', '.join(TaskKind)}, got {name!r}")
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
