"""The rules of one row: which values make the examples of each kind of task."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from nunatak_training.data.examples import Example, ReadExample
from nunatak_training.data.labels import (
    Answers,
    AnswerSpan,
    LabelSet,
    Relevance,
    TaggedWords,
    Word,
)
from nunatak_training.data.values import kind_of, read_label, read_list, read_number, read_text
from nunatak_training.errors import InvalidRowError, MissingColumnError
from nunatak_training.kinds import TaskKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row as a file has it, and the places to name in messages."""

    where: str
    columns_at: str
    """Where its columns are named: a header, or the row itself."""
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
