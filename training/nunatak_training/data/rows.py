"""The rules of one row: its values, and the examples of each kind of task."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from nunatak_contract.errors import NunatakError
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
from nunatak_training.kinds import TaskKind

MAX_LABEL_CHARS = 200
TEXT_KINDS = frozenset({TaskKind.SINGLE_LABEL, TaskKind.MULTI_LABEL, TaskKind.REGRESSION})
TEXT_COLUMNS = ("text", "text_pair", "label", "labels")


def read_text(value: object, column: str, where: str) -> str:
    """Return a text that is not blank.

    Raises:
        NunatakError: `invalid_row`, the value is no string, is blank, or is no Unicode text.
    """
    if not isinstance(value, str):
        raise NunatakError(
            "invalid_row", where=where, problem=f"{column!r} must be a string, got {kind_of(value)}"
        )
    if not value.strip():
        raise NunatakError(
            "invalid_row",
            where=where,
            problem=f"{column!r} is empty; remove the row or give it a text",
        )
    return _unicode(value, column, where)


def read_label(value: object, column: str, where: str) -> str:
    """Return the name of a label.

    Raises:
        NunatakError: `invalid_row`, the value is no string, integer or boolean, or is too long or
            empty.
    """
    match value:
        case bool():
            label = "true" if value else "false"
        case int():
            label = str(value)
        case str():
            label = _unicode(value, column, where)
        case _:
            raise NunatakError(
                "invalid_row",
                where=where,
                problem=f"{column!r} must be a string, an integer or a boolean, got "
                f"{kind_of(value)}",
            )
    if not 1 <= len(label) <= MAX_LABEL_CHARS:
        raise NunatakError(
            "invalid_row",
            where=where,
            problem=f"{column!r} must have 1 to {MAX_LABEL_CHARS} characters, got {len(label)}",
        )
    return label


def read_number(value: object, column: str, where: str) -> float:
    """Return a finite number; files without types spell numbers as text.

    Raises:
        NunatakError: `invalid_row`, it is none.
    """
    number = math.nan
    if isinstance(value, (int, float, str)):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
    if not math.isfinite(number):
        shown = repr(value) if isinstance(value, (str, float)) else kind_of(value)
        raise NunatakError(
            "invalid_row", where=where, problem=f"{column!r} must be a finite number, got {shown}"
        )
    return number


def read_list(value: object, column: str, where: str) -> Sequence[object]:
    """Return a list.

    Raises:
        NunatakError: `invalid_row`, it is none.
    """
    if not isinstance(value, (list, tuple)):
        raise NunatakError(
            "invalid_row",
            where=where,
            problem=f"{column!r} must be a list, got {kind_of(value)}; CSV and TSV hold no lists, "
            "use "
            "JSONL or Parquet",
        )
    return cast("Sequence[object]", value)


def kind_of(value: object) -> str:
    """Return the name of a value's type, for a message."""
    return "nothing" if value is None else type(value).__name__


def _unicode(value: str, column: str, where: str) -> str:
    # JSON can spell a lone surrogate, which no tokenizer and no UTF-8 file can hold.
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise NunatakError(
            "invalid_row",
            where=where,
            problem=f"{column!r} holds a lone surrogate, which is no character",
        )
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """One row of a file, and the places to name in messages."""

    where: str
    columns_at: str
    """The place that names the columns: a header, or the row itself."""
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormat:
    """The columns and the delimiter of a task's files, where they differ from the default."""

    text: str | None = None
    """The column that holds the text; absent: `text`."""
    label: str | None = None
    """The column that holds the label or the list of labels; absent: `label` or `labels`."""
    pair: str | None = None
    """The column that holds the second text; absent: `text_pair`, if there is one."""
    delimiter: str | None = None
    """The separator of fields in CSV and TSV files; absent: found in the header line."""

    @property
    def names_columns(self) -> bool:
        """Whether a column has another name than usual."""
        return any(name is not None for name in (self.text, self.label, self.pair))

    def usual(self, row: FileRow, kind: TaskKind | None) -> FileRow:
        """Return a row with the usual column names, and without all other columns.

        Raises:
            NunatakError: `missing_column`, the row lacks a column that this format names.
            NunatakError: `invalid_row`, the kind of task has other columns than text and label.
        """
        if not self.names_columns:
            return row
        if kind not in {None, *TEXT_KINDS}:
            raise NunatakError(
                "invalid_row",
                where=row.columns_at,
                problem=f"a {kind} task has other columns than text and label; rename its columns "
                "in the file, and leave --text-column, --label-column and --pair-column out",
            )
        told = kind or TaskKind.SINGLE_LABEL
        for column in (self.text, self.label, self.pair):
            if column is not None and column not in row.values:
                raise _missing(column, row, told)
        label = None if self.label is None else row.values[self.label]
        is_list = kind is TaskKind.MULTI_LABEL or (kind is None and isinstance(label, list))
        named = {
            "text": self.text,
            "labels" if is_list else "label": self.label,
            "text_pair": self.pair,
        }
        values = {name: row.values[name] for name in TEXT_COLUMNS if name in row.values}
        if self.label is not None:
            values = {name: it for name, it in values.items() if not name.startswith("label")}
        values |= {name: row.values[column] for name, column in named.items() if column is not None}
        return FileRow(where=row.where, columns_at=row.columns_at, values=values)


def parse_row(row: FileRow, kind: TaskKind) -> list[ReadExample]:
    """Read one row; other columns than the kind's are ignored.

    Raises:
        NunatakError: `missing_column`, a column of the kind is missing.
        NunatakError: `invalid_row`, a value has a wrong type, is empty or is no Unicode text.
    """
    for column in kind.columns:
        if column not in row.values:
            raise _missing(column, row, kind)
    return [ReadExample(where=row.where, example=example) for example in _examples(row, kind)]


_PAIR = "and, for pairs, 'text_pair'"
_NEEDED: Mapping[TaskKind, str] = {
    TaskKind.SINGLE_LABEL: f"'text', 'label' {_PAIR}",
    TaskKind.MULTI_LABEL: f"'text', 'labels' {_PAIR}",
    TaskKind.REGRESSION: f"'text', 'label' {_PAIR}",
    TaskKind.TOKEN_CLASSIFICATION: "'tokens' and 'tags'",
    TaskKind.QUESTION_ANSWERING: "'question', 'context' and 'answers'",
    TaskKind.RANKING: "'query', 'document', 'label' (or 'query', 'documents', 'relevance')",
}


def _missing(column: str, row: FileRow, kind: TaskKind) -> NunatakError:
    return NunatakError(
        "missing_column",
        where=row.columns_at,
        column=column,
        found=", ".join(map(repr, list(row.values)[:20])) or "none",
        kind=kind,
        needed=_NEEDED[kind],
    )


def _examples(row: FileRow, kind: TaskKind) -> list[Example]:
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


def _labelled(row: FileRow, label: str | float | LabelSet) -> Example:
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
        raise NunatakError(
            "invalid_row",
            where=where,
            problem="'tokens' and 'tags' must be equally many and at least 1, "
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
    """The answers one by one; `datasets` stores them as one list for each field."""
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, object]", value)
        texts = read_list(fields.get("text"), "answers.text", where)
        starts = read_list(fields.get("answer_start"), "answers.answer_start", where)
        if len(texts) != len(starts):
            raise NunatakError(
                "invalid_row", where=where, problem="'answers' has not as many texts as starts"
            )
        return [
            {"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)
        ]
    return list(read_list(value, "answers", where))


def _answer(value: object, context: str, where: str) -> AnswerSpan:
    if not isinstance(value, Mapping):
        raise NunatakError(
            "invalid_row",
            where=where,
            problem=f"an answer must be an object {{text, answer_start}}, got {kind_of(value)}",
        )
    fields = cast("Mapping[str, object]", value)
    text, start = fields.get("text"), fields.get("answer_start")
    if not isinstance(text, str) or not isinstance(start, int) or not text.strip():
        raise NunatakError(
            "invalid_row",
            where=where,
            problem=f"an answer needs a 'text' and an integer 'answer_start', got {dict(fields)!r}",
        )
    if start < 0 or context[start : start + len(text)] != text:
        raise NunatakError(
            "invalid_row",
            where=where,
            problem=f"the context has {context[max(0, start) : max(0, start) + len(text)]!r} at "
            f"character {start}, not the answer {text!r}",
        )
    return AnswerSpan(text=text, begin=start)


def _documents(row: FileRow) -> list[Example]:
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


def _graded(row: FileRow) -> list[tuple[object, object]]:
    values = row.values
    if "document" in values:
        if "label" not in values:
            raise _missing("label", row, TaskKind.RANKING)
        return [(values["document"], values["label"])]
    for column in ("documents", "relevance"):
        if column not in values:
            raise _missing(column, row, TaskKind.RANKING)
    documents = read_list(values["documents"], "documents", row.where)
    grades = read_list(values["relevance"], "relevance", row.where)
    if not documents or len(documents) != len(grades):
        raise NunatakError(
            "invalid_row",
            where=row.where,
            problem="'documents' and 'relevance' must be equally many and at least 1, "
            f"got {len(documents)} and {len(grades)}",
        )
    return list(zip(documents, grades, strict=True))
