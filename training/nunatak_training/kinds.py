"""Kinds of task: the fields of a row of each kind, the detection of the kind, and the metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from nunatak_contract.enums import HeadKind, ProblemType
from nunatak_contract.errors import invalid_option
from nunatak_contract.heads import HeadRecord


class TaskKind(StrEnum):
    SINGLE_LABEL = "single-label"
    MULTI_LABEL = "multi-label"
    REGRESSION = "regression"
    TOKEN_CLASSIFICATION = "token-classification"  # noqa: S105 - a kind, no secret
    QUESTION_ANSWERING = "question-answering"
    RANKING = "ranking"

    @property
    def head(self) -> HeadKind:
        return _FORMS[self].head

    @property
    def problem_type(self) -> ProblemType | None:
        return _FORMS[self].problem_type

    @property
    def columns(self) -> tuple[str, ...]:
        """A query has one `document` or many `documents`."""
        return _FORMS[self].columns

    @property
    def needed(self) -> str:
        pairs = " and, for pairs, 'text_pair'" * (self.head is _TEXTS)
        return _FORMS[self].needed or f"{', '.join(map(repr, self.columns))}{pairs}"


@dataclass(frozen=True, slots=True)
class _Form:
    head: HeadKind
    columns: tuple[str, ...]
    problem_type: ProblemType | None = None
    needed: str | None = None


_TEXTS = HeadKind.SEQUENCE_CLASSIFICATION
_FORMS = {
    TaskKind.SINGLE_LABEL: _Form(_TEXTS, ("text", "label"), ProblemType.SINGLE_LABEL),
    TaskKind.MULTI_LABEL: _Form(_TEXTS, ("text", "labels"), ProblemType.MULTI_LABEL),
    TaskKind.REGRESSION: _Form(_TEXTS, ("text", "label"), ProblemType.REGRESSION),
    TaskKind.TOKEN_CLASSIFICATION: _Form(
        HeadKind.TOKEN_CLASSIFICATION, ("tokens", "tags"), needed="'tokens' and 'tags'"
    ),
    TaskKind.QUESTION_ANSWERING: _Form(
        HeadKind.QUESTION_ANSWERING,
        ("question", "context", "answers"),
        needed="'question', 'context' and 'answers'",
    ),
    TaskKind.RANKING: _Form(
        HeadKind.RANKING,
        ("query",),
        needed="'query', 'document', 'label' (or 'query', 'documents', 'relevance')",
    ),
}
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
