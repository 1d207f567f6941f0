"""What a teacher says about texts: the column `probabilities`, of a file or of the teacher.

A label follows from the probabilities: the likeliest one, all from one half up, or the mean of a
regression. So rows without a label of their own are examples like all others.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from nunatak_contract.errors import NunatakError
from nunatak_contract.heads import DEFAULT_THRESHOLD
from nunatak_model import TextInput
from nunatak_rows import FileRow, RowFormat
from nunatak_rows.inputs import bad_row, kind_of
from nunatak_training.data.examples import Label, LabelSet, ReadExample, sorted_labels
from nunatak_training.kinds import TaskKind

COLUMN = "probabilities"
TAUGHT_KINDS = (TaskKind.SINGLE_LABEL, TaskKind.MULTI_LABEL, TaskKind.REGRESSION)
TOLERANCE = 0.01
"""How far the probabilities of a text may be from 1 in sum: servers round each of many options."""

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
        answer = {} if text is None else said[text]
        if isinstance(answer, NunatakError):
            return replace(row, problem=f"{teacher.name} has no answer: {answer}")
        return row if text is None else replace(row, values={**row.values, COLUMN: answer})

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


def read_shares(value: object, kind: TaskKind, where: str) -> tuple[tuple[str, float], ...]:
    """The probabilities of a row, in the order of labels; of a single label they sum to 1."""
    if not isinstance(value, Mapping) or not value:
        raise bad_row(
            where,
            f"{COLUMN!r} must be an object of numbers by label, such as {{'yes': 0.9, 'no': 0.1}}, "
            f"got {kind_of(value)}; CSV and TSV hold no objects, use JSONL or Parquet",
        )
    given = {str(label): it for label, it in cast("Mapping[object, object]", value).items()}
    found = list[tuple[str, float]]()
    for label in sorted_labels(given):
        match given[label]:
            case int() | float() as share if not isinstance(share, bool) and 0 <= share <= 1:
                found.append((label, float(share)))
            case share:
                shown = repr(share) if isinstance(share, int | float) else kind_of(share)
                raise bad_row(where, f"the probability of {label!r} must be 0 to 1, got {shown}")
    if kind is TaskKind.MULTI_LABEL:
        return tuple(found)
    total = math.fsum(share for _, share in found)
    if abs(total - 1) > TOLERANCE:
        hint = "say --kind multi-label if several labels may apply"
        raise bad_row(where, f"the probabilities must sum to 1, got {total:g}; {hint}")
    return tuple((label, share / total) for label, share in found)


def label_of(shares: Sequence[tuple[str, float]], kind: TaskKind, where: str) -> Label:
    """The label that follows from the shares; of equally likely ones, the first."""
    match kind:
        case TaskKind.MULTI_LABEL:
            return LabelSet(names=tuple(it for it, share in shares if share >= DEFAULT_THRESHOLD))
        case TaskKind.REGRESSION:
            return math.fsum(_value(label, where) * share for label, share in shares)
        case _:
            return max(shares, key=lambda it: it[1])[0]


def _value(label: str, where: str) -> float:
    try:
        value = float(label)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise bad_row(where, f"of a regression, the labels must be numbers, got {label!r}")
    return value


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
        own = set(names_in(read.example.label))
        if not known or (said == known and own <= known):
            return None
        lacking, strange = sorted(known - said), sorted((said | own) - known)
        problem = f"name {strange[0]!r}" if strange else f"lack {lacking[0]!r}"
        return bad_row(read.where, f"its labels {problem}; the labels are {shown}")

    return fault
