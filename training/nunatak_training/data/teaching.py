"""What a teacher says about texts: the column `probabilities`, from a file or from the teacher.

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
from nunatak_training.data.examples import (
    ExampleSet,
    Label,
    LabelSet,
    ReadExample,
    TeacherFacts,
    sorted_labels,
)
from nunatak_training.kinds import TaskKind

COLUMN = "probabilities"
TAUGHT_KINDS = (TaskKind.SINGLE_LABEL, TaskKind.MULTI_LABEL, TaskKind.REGRESSION)
TOLERANCE = 0.01
"""How far the probabilities of a text may be from 1 in sum: servers round each of many options."""

Shares = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """A task version or a server that is asked about texts."""

    name: str
    digest: str
    kind: TaskKind
    labels: tuple[str, ...] = ()
    """Of a regression: none."""
    ask: Callable[[Sequence[TextInput]], Iterable[Shares | NunatakError]]
    """Gives the probabilities of each input in order, or why there are none."""


class Lesson:
    """The teacher of a run, and what the rows have cost so far."""

    def __init__(self, teacher: Teacher | None, spelt: RowFormat) -> None:
        self._teacher = teacher
        self._spelt = spelt
        self._seconds = 0.0

    def kind(self, said: TaskKind | None) -> TaskKind | None:
        """Check the kind of the task, which the teacher decides if there is one."""
        found = said if self._teacher is None else self._teacher.kind
        if said not in {None, found} or found not in {None, *TAUGHT_KINDS}:
            taught = "" if self._teacher is None else f", and {self._teacher.name} a {found} task"
            raise NunatakError(
                "invalid_option",
                problem=f"a teacher teaches {', '.join(TAUGHT_KINDS)}{taught}; got {said or found}",
            )
        return found

    def taught(self, *parts: Iterator[FileRow] | None) -> list[Iterator[FileRow] | None]:
        """The rows of each part with the probabilities of the teacher; without one, as they are."""
        if self._teacher is None:
            return list(parts)
        listed = [None if rows is None else list(rows) for rows in parts]
        inputs = {id(row): self._input_of(row) for rows in listed for row in rows or ()}
        asked = list(dict.fromkeys(it for it in inputs.values() if it is not None))
        started = time.perf_counter()
        said = dict(zip(asked, self._teacher.ask(asked), strict=True))
        self._seconds = time.perf_counter() - started
        name = self._teacher.name

        def answered(row: FileRow) -> FileRow:
            asked = inputs[id(row)]
            return row if asked is None else _with(row, said[asked], name)

        return [None if rows is None else map(answered, rows) for rows in listed]

    def labels_of(self, read: Sequence[ReadExample], kind: TaskKind) -> tuple[str, ...]:
        """The labels of the teacher, or else those that most of the rows have."""
        if kind is TaskKind.REGRESSION:
            return ()
        if self._teacher is not None:
            return sorted_labels(self._teacher.labels)
        sets = Counter(tuple(name for name, _ in shares_of(it)) for it in read)
        return sets.most_common(1)[0][0] if sets else ()

    def facts(self, source: str, parts: Sequence[ExampleSet | None]) -> TeacherFacts:
        """`source` names the file of rows that had their probabilities already."""
        teacher, given = self._teacher, [it for it in parts if it is not None]
        return TeacherFacts(
            name=source if teacher is None else teacher.name,
            digest=given[0].digest if teacher is None else teacher.digest,
            num_texts=sum(map(len, given)),
            seconds=self._seconds,
        )

    def _input_of(self, row: FileRow) -> TextInput | None:
        """None for a row without a text, which is told when the row is read."""
        try:
            values = self._spelt.usual(row).values
        except NunatakError:
            return None
        text, pair = values.get("text"), values.get("text_pair")
        parts = [it for it in (text, pair) if isinstance(it, str) and it.strip()]
        if not isinstance(text, str) or len(parts) != 1 + (pair is not None):
            return None
        return text if pair is None else (parts[0], parts[1])


def _with(row: FileRow, said: Shares | NunatakError, teacher: str) -> FileRow:
    if isinstance(said, NunatakError):
        return replace(row, problem=f"{teacher} does not answer: {said}")
    return replace(row, values={**row.values, COLUMN: said})


def read_shares(value: object, kind: TaskKind, where: str) -> tuple[tuple[str, float], ...]:
    """The probabilities of a row by label, in the order of labels; single labels sum to 1."""
    if not isinstance(value, Mapping) or not value:
        raise bad_row(
            where,
            f"{COLUMN!r} must be an object of numbers by label, such as {{'yes': 0.9, 'no': 0.1}}, "
            f"got {kind_of(value)}; CSV and TSV hold no objects, use JSONL or Parquet",
        )
    shares = {str(label): it for label, it in cast("Mapping[object, object]", value).items()}
    found = dict[str, float]()
    for label in sorted_labels(shares):
        share = shares[label]
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        if not is_number or not 0 <= share <= 1:
            shown = repr(share) if is_number else kind_of(share)
            raise bad_row(where, f"the probability of {label!r} must be in [0, 1], got {shown}")
        found[label] = float(share)
    if kind is TaskKind.MULTI_LABEL:
        return tuple(found.items())
    total = math.fsum(found.values())
    if abs(total - 1) > TOLERANCE:
        raise bad_row(
            where,
            f"the probabilities must sum to 1, got {total:g}; say --kind multi-label if several "
            "labels may apply",
        )
    return tuple((label, share / total) for label, share in found.items())


def label_of(shares: tuple[tuple[str, float], ...], kind: TaskKind, where: str) -> Label:
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
        raise bad_row(where, f"the labels of a regression are numbers, got {label!r}")
    return value


def other_labels(
    labels: Sequence[str], names_in: Callable[[Label], Sequence[str]]
) -> Callable[[ReadExample], NunatakError | None]:
    """The fault of an example whose labels, or its teacher's, are not these, if there are some."""
    known, shown = set(labels), ", ".join(map(repr, labels[:20]))

    def fault(read: ReadExample) -> NunatakError | None:
        if not known:
            return None
        named = {name for name, _ in shares_of(read)}
        strange = next(iter(sorted(named - known)), None)
        own = next((it for it in names_in(read.example.label) if it not in known), None)
        missing = next((it for it in labels if it not in named), None)
        if strange is not None:
            problem = f"the probabilities name {strange!r}, which is none of the labels {shown}"
        elif missing is not None:
            problem = f"the probabilities lack the label {missing!r}"
        elif own is not None:
            problem = f"the label {own!r} is none of the teacher's: {shown}"
        else:
            return None
        return bad_row(read.where, problem)

    return fault


def shares_of(read: ReadExample) -> tuple[tuple[str, float], ...]:
    taught = read.example.taught
    return () if taught is None else taught.shares
