"""A teacher, the rows that it answers, and the labels that all rows must have."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nunatak_contract.errors import NunatakError
from nunatak_model import TextInput
from nunatak_rows import FileRow, RowFormat
from nunatak_rows.inputs import bad_row
from nunatak_training.data.examples import Label, ReadExample, sorted_labels
from nunatak_training.data.rows import PROBABILITIES
from nunatak_training.kinds import TaskKind

TAUGHT_KINDS = (TaskKind.SINGLE_LABEL, TaskKind.MULTI_LABEL, TaskKind.REGRESSION)

Shares = Mapping[str, float]
Rows = Iterator[FileRow] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """A task version or a server that is asked about texts."""

    name: str
    digest: str
    kind: TaskKind
    labels: tuple[str, ...]
    """Of a regression: none."""
    ask: Callable[[Sequence[TextInput]], Iterable[Shares | NunatakError]]
    """Gives the probabilities of each input in order, or why there are none."""


def check_taught(kind: TaskKind | None, teacher: Teacher | None) -> TaskKind | None:
    """The kind of the task, which a teacher decides; None: the rows decide."""
    found = kind if teacher is None else teacher.kind
    if kind not in {None, found} or found not in {None, *TAUGHT_KINDS}:
        needed = f"{', '.join(TAUGHT_KINDS)} tasks" if kind is found else f"a {found} task"
        problem = f"the probabilities of a teacher make {needed}, got kind {kind}"
        raise NunatakError("invalid_option", problem=problem)
    return found


def ask_teacher(
    teacher: Teacher, parts: Sequence[Rows], spelt: RowFormat
) -> tuple[list[Rows], float]:
    """The rows of each part with the teacher's probabilities, and the seconds of asking."""
    listed = [None if rows is None else list(rows) for rows in parts]
    inputs = {id(row): _input_of(row, spelt) for rows in listed for row in rows or ()}
    asked = list(dict.fromkeys(it for it in inputs.values() if it is not None))
    started = time.perf_counter()
    said = dict(zip(asked, teacher.ask(asked), strict=True))
    seconds = time.perf_counter() - started

    def answered(row: FileRow) -> FileRow:
        text = inputs[id(row)]
        answer = None if text is None else said[text]
        if isinstance(answer, NunatakError):
            return replace(row, problem=f"{teacher.name} has no answer: {answer}")
        return row if answer is None else replace(row, values={**row.values, PROBABILITIES: answer})

    return [None if rows is None else map(answered, rows) for rows in listed], seconds


def _input_of(row: FileRow, spelt: RowFormat) -> TextInput | None:
    """None for a row without a text, which is told when the row is read."""
    try:
        values = spelt.usual(row).values
    except NunatakError:
        return None
    match values.get("text"), values.get("text_pair"):
        case str() as text, None if text.strip():
            return text
        case str() as text, str() as pair if text.strip() and pair.strip():
            return text, pair
        case _:
            return None


def taught_labels(
    read: Iterable[ReadExample], kind: TaskKind, teacher: Teacher | None
) -> tuple[str, ...]:
    """The labels of the teacher, or else those of most rows; none of a regression."""
    if kind is TaskKind.REGRESSION:
        return ()
    if teacher is not None:
        return sorted_labels(teacher.labels)
    sets = Counter(tuple(name for name, _ in it.example.shares) for it in read)
    return sets.most_common(1)[0][0] if sets else ()


def other_labels(
    labels: Sequence[str], names_in: Callable[[Label], Sequence[str]]
) -> Callable[[ReadExample], NunatakError | None]:
    """The fault of an example whose labels are not these, if these are some."""
    known, shown = frozenset(labels), ", ".join(map(repr, labels[:20]))

    def fault(read: ReadExample) -> NunatakError | None:
        said = {name for name, _ in read.example.shares}
        strange = sorted({*said, *names_in(read.example.label)} - known)
        lacking = sorted(known - said)
        if not known or not (strange or lacking):
            return None
        problem = f"name {strange[0]!r}" if strange else f"lack {lacking[0]!r}"
        return bad_row(read.where, f"its labels {problem}; the labels are {shown}")

    return fault
