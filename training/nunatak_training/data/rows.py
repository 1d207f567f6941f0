"""The rules of one row: its values, and the examples of each kind of task."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import cast

from nunatak_contract.errors import NunatakError, invalid_option
from nunatak_contract.heads import DEFAULT_THRESHOLD
from nunatak_rows import FileRow, RowFormat
from nunatak_rows.inputs import bad_row, kind_of
from nunatak_training.data import examples
from nunatak_training.kinds import TaskKind

MAX_LABEL_CHARS = 200
MAX_NUMBER = 1e15
"""Of a label: the squares of larger errors, and their sums, leave the range of float32."""
VALUE_NAME = "value"
PROBABILITIES = "probabilities"
"""The column of what a teacher says: an object of numbers by label."""
SUM_TOLERANCE = 0.01
"""Of the probabilities of a text: servers round each of many."""
TEXT_KINDS = frozenset({TaskKind.SINGLE_LABEL, TaskKind.MULTI_LABEL, TaskKind.REGRESSION})
COLUMN_OPTIONS = "text_column, label_column and pair_column"
ADVICE = "rename its columns in the file"


def read_text(value: object, column: str, where: str) -> str:
    if not isinstance(value, str):
        raise bad_row(where, f"{column!r} must be a string, got {kind_of(value)}")
    if not value.strip():
        raise bad_row(where, f"{column!r} is empty; remove the row or give it a text")
    return _unicode(value, column, where)


def read_label(value: object, column: str, where: str) -> str:
    match value:
        case bool():
            label = "true" if value else "false"
        case int():
            # Python writes no number of thousands of digits, and such a label is refused below.
            label = str(value) if value.bit_length() < 4 * MAX_LABEL_CHARS else hex(value)
        case float() if value.is_integer():
            # A missing value makes a column of numbers with a decimal point of integers.
            label = str(int(value))
        case str():
            label = _unicode(value, column, where)
        case _:
            told = f"must be a string, an integer or a boolean, got {kind_of(value)}"
            if isinstance(value, float):
                told += "; set kind to regression if labels are values"
            raise bad_row(where, f"{column!r} {told}")
    if not label.strip() or len(label) > MAX_LABEL_CHARS:
        found = "white space alone" if label.isspace() else len(label)
        told = f"must have 1 to {MAX_LABEL_CHARS} characters, got {found}"
        raise bad_row(where, f"{column!r} {told}")
    return label


def read_number(value: object, column: str, where: str) -> float:
    """Files without types spell numbers as text. Python reads 1_5 as 15, and true as 1."""
    number = math.nan
    is_spelt_as_one = not (isinstance(value, bool) or (isinstance(value, str) and "_" in value))
    if isinstance(value, (int, float, str, Decimal)) and is_spelt_as_one:
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
    if not abs(number) <= MAX_NUMBER:
        shown = repr(value) if isinstance(value, (str, float, bool)) else kind_of(value)
        raise bad_row(
            where, f"{column!r} must be a finite number of at most {MAX_NUMBER:g}, got {shown}"
        )
    return number


def read_list(value: object, column: str, where: str) -> Sequence[object]:
    if not isinstance(value, (list, tuple)):
        raise bad_row(
            where,
            f"{column!r} must be a list, got {kind_of(value)}; JSONL and Parquet hold lists, CSV "
            "and TSV do not",
        )
    return cast("Sequence[object]", value)


def _unicode(value: str, column: str, where: str) -> str:
    # JSON can spell a lone surrogate, which no tokenizer and no UTF-8 file can hold.
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise bad_row(where, f"{column!r} holds a lone surrogate, which is no character")
    return value


def parse_row(
    row: FileRow, kind: TaskKind, spelt: RowFormat, teacher: examples.Teacher | None = None
) -> list[examples.Example]:
    if row.problem is not None:
        raise bad_row(row.where, row.problem)
    if spelt.is_taught and kind not in TEXT_KINDS:
        told = f"probabilities teach {', '.join(sorted(TEXT_KINDS))} tasks, got kind {kind}"
        raise invalid_option(told)
    if spelt.renamed and kind not in TEXT_KINDS:
        raise invalid_option(
            f"a {kind} task has other columns than text and label; {ADVICE}, and leave "
            f"{COLUMN_OPTIONS} out"
        )
    _check_columns(row, kind, spelt)
    usual = spelt.usual(row)
    if kind is TaskKind.MULTI_LABEL and spelt.label is not None:
        values = {**usual.values, "labels": usual.values["label"]}
        usual = replace(usual, values=values, columns={**usual.columns, "labels": spelt.label})
    return [_taught(usual, kind, teacher)] if spelt.is_taught else _labelled_examples(usual, kind)


def _check_columns(row: FileRow, kind: TaskKind, spelt: RowFormat) -> None:
    for column in spelt.renamed.values():
        if column not in row.values:
            raise _missing(column, row, kind)
    read = [spelt.text or "text", spelt.pair or "text_pair"]
    if spelt.label or not spelt.is_taught:
        read.append(spelt.label or ("labels" if kind is TaskKind.MULTI_LABEL else "label"))
    if len(set(read)) < len(read):
        raise invalid_option(
            "text, second text and label must stand in columns of their own, got the columns "
            f"{', '.join(map(repr, read))}; name each with text_column, pair_column and "
            "label_column"
        )


def _missing(column: str, row: FileRow, kind: TaskKind, needed: str | None = None) -> NunatakError:
    return NunatakError(
        "missing_column",
        where=row.header or row.where,
        column=column,
        found=", ".join(map(repr, dict.fromkeys(map(row.called, [*row.values][:20])))) or "none",
        kind=kind,
        needed=needed or kind.needed,
        advice=f"{COLUMN_OPTIONS} name columns of other names" if kind in TEXT_KINDS else ADVICE,
    )


def _labelled_examples(row: FileRow, kind: TaskKind) -> list[examples.Example]:
    for column in kind.columns:
        if column not in row.values:
            raise _missing(column, row, kind)
    return _examples(row, kind)


def _examples(row: FileRow, kind: TaskKind) -> list[examples.Example]:
    values, where = row.values, row.where
    match kind:
        case TaskKind.SINGLE_LABEL:
            return [text_example(row, read_label(values["label"], row.called("label"), where))]
        case TaskKind.MULTI_LABEL:
            return [text_example(row, _label_set(values["labels"], row.called("labels"), where))]
        case TaskKind.REGRESSION:
            return [text_example(row, read_number(values["label"], row.called("label"), where))]
        case TaskKind.TOKEN_CLASSIFICATION:
            return [_tagged(values, where)]
        case TaskKind.QUESTION_ANSWERING:
            return [_question(values, where)]
        case TaskKind.RANKING:
            return _documents(row)


def _taught(row: FileRow, kind: TaskKind, teacher: examples.Teacher | None) -> examples.Example:
    """An example with a teacher's probabilities, and a label of its own or the teacher's."""
    for column in ("text", PROBABILITIES):
        if column not in row.values:
            raise _missing(column, row, kind, f"'text' and {PROBABILITIES!r}, maybe a label")
        # No teacher is asked about a text that cannot be read, so this fault comes first.
        read_text(row.values["text"], row.called("text"), row.where)
    shares = _shares(row.values[PROBABILITIES], kind, row.where)
    # CSV has no other way to leave a label out.
    has_label = row.values.get(kind.columns[-1], "") not in (None, "")
    said = label_of(shares, kind, teacher)
    (own,) = _examples(row, kind) if has_label else (text_example(row, said),)
    return replace(own, shares=shares, has_label=has_label)


def label_of(
    shares: Sequence[tuple[str, float]], kind: TaskKind, teacher: examples.Teacher | None = None
) -> examples.Label:
    """The label that shares say: all from the thresholds up, the value, or the likeliest one."""
    match kind:
        case TaskKind.MULTI_LABEL:
            known: Mapping[str, float] = {} if teacher is None else teacher.thresholds
            names = (it for it, share in shares if share >= known.get(it, DEFAULT_THRESHOLD))
            return examples.LabelSet(names=tuple(names))
        case TaskKind.REGRESSION:
            return shares[0][1]
        case _:
            return max(shares, key=lambda it: it[1])[0]


def _shares(value: object, kind: TaskKind, where: str) -> tuple[tuple[str, float], ...]:
    """The probabilities of a row, in the order of labels; the mean of a regression."""
    if not isinstance(value, dict) or not value:
        told = "an empty one" if value == {} else kind_of(value)
        hint = "; CSV and TSV hold no objects, use JSONL" * isinstance(value, str)
        raise bad_row(
            where, f"{PROBABILITIES!r} must be an object of numbers by label, got {told}{hint}"
        )
    named = cast("dict[object, object]", value)
    given = {read_label(it, f"label of {PROBABILITIES}", where): named[it] for it in named}
    if len(given) < len(named):
        raise bad_row(where, f"two labels of {PROBABILITIES!r} are the same text")
    for label, share in given.items():
        if isinstance(share, bool) or not (isinstance(share, int | float) and 0 <= share <= 1):
            shown = repr(share) if isinstance(share, int | float) else kind_of(share)
            raise bad_row(where, f"the probability of {label!r} must be 0 to 1, got {shown}")
    found = [(it, float(cast("float", given[it]))) for it in examples.sorted_labels(given)]
    if kind is TaskKind.MULTI_LABEL:
        return tuple(found)
    total = math.fsum(share for _, share in found)
    if abs(total - 1) > SUM_TOLERANCE:
        hint = "set kind to multi-label if several labels may apply"
        raise bad_row(where, f"the probabilities must sum to 1, got {total:g}; {hint}")
    if kind is TaskKind.REGRESSION:
        values = (read_number(it, f"label of {PROBABILITIES}", where) for it, _ in found)
        mean = math.fsum(it * share / total for it, (_, share) in zip(values, found, strict=True))
        return ((VALUE_NAME, mean),)
    return tuple((label, share / total) for label, share in found)


def _label_set(value: object, column: str, where: str) -> examples.LabelSet:
    names = read_list(value, column, where)
    # One label for each zero and one of a vector would be learnt as "0" and "1".
    is_vector = bool(names) and all(isinstance(it, int | float) for it in names)
    if is_vector and len(set(names)) < len(names):
        raise bad_row(
            where,
            f"{column!r} is a vector of {len(names)} numbers; list the names of the labels that "
            "apply instead",
        )
    labels = {read_label(name, column, where) for name in names}
    return examples.LabelSet(names=tuple(sorted(labels)))


def text_example(row: FileRow, label: examples.Label) -> examples.Example:
    pair = row.values.get("text_pair")
    return examples.Example(
        text=read_text(row.values["text"], row.called("text"), row.where),
        text_pair=None if pair is None else read_text(pair, row.called("text_pair"), row.where),
        label=label,
    )


def _tagged(values: Mapping[str, object], where: str) -> examples.Example:
    tokens = [
        read_text(token, "tokens", where) for token in read_list(values["tokens"], "tokens", where)
    ]
    tags = [read_label(tag, "tags", where) for tag in read_list(values["tags"], "tags", where)]
    if not tokens or len(tokens) != len(tags):
        raise bad_row(
            where,
            "'tokens' and 'tags' must be equally many and at least 1, "
            f"got {len(tokens)} and {len(tags)}",
        )
    words: list[examples.Word] = []
    begin = 0
    for token, tag in zip(tokens, tags, strict=True):
        words.append(examples.Word(begin=begin, end=begin + len(token), tag=tag))
        begin += len(token) + 1
    return examples.Example(text=" ".join(tokens), label=examples.TaggedWords(words=tuple(words)))


def _question(values: Mapping[str, object], where: str) -> examples.Example:
    context = read_text(values["context"], "context", where)
    return examples.Example(
        text=read_text(values["question"], "question", where),
        text_pair=context,
        label=examples.Answers(
            spans=tuple(
                _answer(answer, context, where) for answer in _answer_rows(values["answers"], where)
            )
        ),
    )


def _answer_rows(value: object, where: str) -> list[object]:
    """`datasets` stores the answers as one list for each field."""
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, object]", value)
        texts = read_list(fields.get("text"), "answers.text", where)
        starts = read_list(fields.get("answer_start"), "answers.answer_start", where)
        if len(texts) != len(starts):
            raise bad_row(where, "'answers' has not as many texts as starts")
        return [
            {"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)
        ]
    return list(read_list(value, "answers", where))


def _answer(value: object, context: str, where: str) -> examples.AnswerSpan:
    if not isinstance(value, Mapping):
        raise bad_row(
            where, f"an answer must be an object {{text, answer_start}}, got {kind_of(value)}"
        )
    fields = cast("Mapping[str, object]", value)
    text, start = fields.get("text"), fields.get("answer_start")
    if not isinstance(text, str) or type(start) is not int or not text.strip():
        raise bad_row(
            where, f"an answer needs a 'text' and an integer 'answer_start', got {dict(fields)!r}"
        )
    if start < 0 or context[start : start + len(text)] != text:
        raise bad_row(
            where,
            f"the context has {context[max(0, start) : max(0, start) + len(text)]!r} at "
            f"character {start}, not the answer {text!r}",
        )
    return examples.AnswerSpan(text=text, begin=start)


def _documents(row: FileRow) -> list[examples.Example]:
    values, where = row.values, row.where
    query = read_text(values["query"], "query", where)
    group = read_label(values["group"], "group", where) if "group" in values else query
    return [
        examples.Example(
            text=query,
            text_pair=read_text(document, "document", where),
            label=examples.Relevance(grade=read_number(grade, "relevance", where), group=group),
        )
        for document, grade in _graded(row)
    ]


def _graded(row: FileRow) -> list[tuple[object, object]]:
    values = row.values
    if "document" in values:
        if "label" not in values:
            raise _missing("label", row, TaskKind.RANKING)
        return [(values["document"], _grade(values["label"]))]
    for column in ("documents", "relevance"):
        if column not in values:
            raise _missing(column, row, TaskKind.RANKING)
    documents = read_list(values["documents"], "documents", row.where)
    grades = read_list(values["relevance"], "relevance", row.where)
    if not documents or len(documents) != len(grades):
        raise bad_row(
            row.where,
            "'documents' and 'relevance' must be equally many and at least 1, "
            f"got {len(documents)} and {len(grades)}",
        )
    return list(zip(documents, map(_grade, grades), strict=True))


def _grade(value: object) -> object:
    """A document is relevant or not, so true and false are grades."""
    return int(value) if isinstance(value, bool) else value
