"""The rules of one row: which values make the examples of each kind of task."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from nunatak_training.data.examples import (
    Answers,
    AnswerSpan,
    Example,
    LabelSet,
    ReadExample,
    Relevance,
    TaggedWords,
    Word,
)
from nunatak_training.errors import InvalidRowError, MissingColumnError
from nunatak_training.kinds import TaskKind

MAX_LABEL_CHARS = 200


def read_text(value: object, column: str, where: str) -> str:
    """Return a text that is not blank.

    Raises:
        InvalidRowError: it is no string, blank, or no Unicode text.
    """
    if not isinstance(value, str):
        raise InvalidRowError(where, f"{column!r} must be a string, got {kind_of(value)}")
    if not value.strip():
        raise InvalidRowError(where, f"{column!r} is empty; remove the row or give it a text")
    return _unicode(value, column, where)


def read_label(value: object, column: str, where: str) -> str:
    """Return the name of a label.

    Raises:
        InvalidRowError: it is neither a string, an integer nor a boolean, or too long or empty.
    """
    match value:
        case bool():
            label = "true" if value else "false"
        case int():
            label = str(value)
        case str():
            label = _unicode(value, column, where)
        case _:
            raise InvalidRowError(
                where, f"{column!r} must be a string, an integer or a boolean, got {kind_of(value)}"
            )
    if not 1 <= len(label) <= MAX_LABEL_CHARS:
        raise InvalidRowError(
            where, f"{column!r} must have 1 to {MAX_LABEL_CHARS} characters, got {len(label)}"
        )
    return label


def read_number(value: object, column: str, where: str) -> float:
    """Return a finite number, also where a file without types spells it as text.

    Raises:
        InvalidRowError: it is none.
    """
    number = math.nan
    if isinstance(value, (int, float, str)):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
    if not math.isfinite(number):
        shown = repr(value) if isinstance(value, (str, float)) else kind_of(value)
        raise InvalidRowError(where, f"{column!r} must be a finite number, got {shown}")
    return number


def read_list(value: object, column: str, where: str) -> Sequence[object]:
    """Return a list.

    Raises:
        InvalidRowError: it is none.
    """
    if not isinstance(value, (list, tuple)):
        raise InvalidRowError(
            where,
            f"{column!r} must be a list, got {kind_of(value)}; CSV and TSV hold no lists, use "
            "JSONL or Parquet",
        )
    return cast("Sequence[object]", value)


def kind_of(value: object) -> str:
    """Name the type of a value, for a message."""
    return "nothing" if value is None else type(value).__name__


def _unicode(value: str, column: str, where: str) -> str:
    # JSON can spell half a surrogate pair; no tokenizer and no UTF-8 file can hold one.
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidRowError(where, f"{column!r} holds a lone surrogate, which is no character")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row as a file has it, and the places to name in messages."""

    where: str
    columns_at: str
    """The place that names its columns: a header, or the row itself."""
    values: Mapping[str, object]


def parse_row(row: Row, kind: TaskKind) -> list[ReadExample]:
    """Read one row; columns that the kind does not know are ignored.

    Raises:
        MissingColumnError: a column of the kind is missing.
        InvalidRowError: a value is of a wrong type, empty or not Unicode text.
    """
    for column in kind.columns:
        if column not in row.values:
            found = tuple(row.values)
            raise MissingColumnError(row.columns_at, column, found, kind=kind)
    return [ReadExample(where=row.where, example=example) for example in _examples(row, kind)]


def _examples(row: Row, kind: TaskKind) -> list[Example]:
    values, where = row.values, row.where
    match kind:
        case TaskKind.SINGLE_LABEL:
            return [_labelled(row, read_label(values["label"], "label", where))]
        case TaskKind.MULTI_LABEL:
            names = read_list(values["labels"], "labels", where)
            labels = {read_label(name, "labels", where) for name in names}
            return [_labelled(row, LabelSet(names=tuple(sorted(labels))))]
        case TaskKind.REGRESSION:
            return [_labelled(row, read_number(values["label"], "label", where))]
        case TaskKind.TOKEN_CLASSIFICATION:
            return [_tagged(values, where)]
        case TaskKind.QUESTION_ANSWERING:
            return [_question(values, where)]
        case TaskKind.RANKING:
            return _documents(row)


def _labelled(row: Row, label: str | float | LabelSet) -> Example:
    pair = row.values.get("text_pair")
    return Example(
        text=read_text(row.values["text"], "text", row.where),
        text_pair=None if pair is None else read_text(pair, "text_pair", row.where),
        label=label,
    )


def _tagged(values: Mapping[str, object], where: str) -> Example:
    tokens = [
        read_text(token, "tokens", where) for token in read_list(values["tokens"], "tokens", where)
    ]
    tags = [read_label(tag, "tags", where) for tag in read_list(values["tags"], "tags", where)]
    if not tokens or len(tokens) != len(tags):
        raise InvalidRowError(
            where,
            "'tokens' and 'tags' must be equally many and at least 1, "
            f"got {len(tokens)} and {len(tags)}",
        )
    words: list[Word] = []
    begin = 0
    for token, tag in zip(tokens, tags, strict=True):
        words.append(Word(begin=begin, end=begin + len(token), tag=tag))
        begin += len(token) + 1
    return Example(text=" ".join(tokens), label=TaggedWords(words=tuple(words)))


def _question(values: Mapping[str, object], where: str) -> Example:
    context = read_text(values["context"], "context", where)
    return Example(
        text=read_text(values["question"], "question", where),
        text_pair=context,
        label=Answers(
            spans=tuple(
                _answer(answer, context, where) for answer in _answer_rows(values["answers"], where)
            )
        ),
    )


def _answer_rows(value: object, where: str) -> list[object]:
    """The answers one by one; `datasets` holds them as one list for each field."""
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, object]", value)
        texts = read_list(fields.get("text"), "answers.text", where)
        starts = read_list(fields.get("answer_start"), "answers.answer_start", where)
        if len(texts) != len(starts):
            raise InvalidRowError(where, "'answers' has not as many texts as starts")
        return [
            {"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)
        ]
    return list(read_list(value, "answers", where))


def _answer(value: object, context: str, where: str) -> AnswerSpan:
    if not isinstance(value, Mapping):
        raise InvalidRowError(
            where, f"an answer must be an object {{text, answer_start}}, got {kind_of(value)}"
        )
    fields = cast("Mapping[str, object]", value)
    text, start = fields.get("text"), fields.get("answer_start")
    if not isinstance(text, str) or not isinstance(start, int) or not text.strip():
        raise InvalidRowError(
            where, f"an answer needs a 'text' and an integer 'answer_start', got {dict(fields)!r}"
        )
    if start < 0 or context[start : start + len(text)] != text:
        raise InvalidRowError(
            where,
            f"the context has {context[max(0, start) : max(0, start) + len(text)]!r} at character "
            f"{start}, and not the answer {text!r}",
        )
    return AnswerSpan(text=text, begin=start)


def _documents(row: Row) -> list[Example]:
    values, where = row.values, row.where
    query = read_text(values["query"], "query", where)
    group = read_label(values["group"], "group", where) if "group" in values else query
    return [
        Example(
            text=query,
            text_pair=read_text(document, "document", where),
            label=Relevance(grade=read_number(grade, "relevance", where), group=group),
        )
        for document, grade in _graded(row)
    ]


def _graded(row: Row) -> list[tuple[object, object]]:
    values = row.values
    if "document" in values:
        if "label" not in values:
            raise MissingColumnError(row.columns_at, "label", tuple(values), kind=TaskKind.RANKING)
        return [(values["document"], values["label"])]
    for column in ("documents", "relevance"):
        if column not in values:
            raise MissingColumnError(row.columns_at, column, tuple(values), kind=TaskKind.RANKING)
    documents = read_list(values["documents"], "documents", row.where)
    grades = read_list(values["relevance"], "relevance", row.where)
    if not documents or len(documents) != len(grades):
        raise InvalidRowError(
            row.where,
            "'documents' and 'relevance' must be equally many and at least 1, "
            f"got {len(documents)} and {len(grades)}",
        )
    return list(zip(documents, grades, strict=True))
