"""The answers of a teacher become columns of rows; the labels that taught rows must have."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from nunatak_contract.errors import NunatakError
from nunatak_model import TextInput
from nunatak_rows import FileRow, RowFormat
from nunatak_training.data.examples import ReadExample, Teacher, sorted_labels
from nunatak_training.data.rows import PROBABILITIES, text_example

Rows = Iterator[FileRow] | None


def ask_teacher(
    teacher: Teacher, parts: Sequence[Rows], spelt: RowFormat
) -> tuple[list[Rows], Teacher]:
    """The rows of each part with the teacher's probabilities, and the teacher with its time."""
    listed = [None if rows is None else list(rows) for rows in parts]
    inputs = {id(row): _input_of(row, spelt) for rows in listed for row in rows or ()}
    asked = [it for it in dict.fromkeys(inputs.values()) if it is not None]
    started = time.perf_counter()
    said = dict(zip(asked, teacher.ask(asked), strict=True))
    seconds = time.perf_counter() - started

    def answered(row: FileRow) -> FileRow:
        text = inputs[id(row)]
        answer = None if text is None else said[text]
        if isinstance(answer, NunatakError):
            return replace(row, problem=f"{teacher.name} has no answer: {answer}")
        return row if answer is None else replace(row, values={**row.values, PROBABILITIES: answer})

    taught: list[Rows] = [None if rows is None else map(answered, rows) for rows in listed]
    return taught, replace(teacher, seconds=seconds)


def _input_of(row: FileRow, spelt: RowFormat) -> TextInput | None:
    """None for a row without a text, whose fault is told when the row is read."""
    try:
        return text_example(spelt.usual(row), "").model_input
    except (NunatakError, KeyError):
        return None


def taught_labels(train: Iterable[ReadExample], teacher: Teacher | None) -> tuple[str, ...]:
    """The labels of the teacher, or else those of most rows."""
    if teacher is not None:
        return sorted_labels(teacher.labels)
    sets = Counter(tuple(dict(it.example.shares)) for it in train)
    return sets.most_common(1)[0][0] if sets else ()
