"""Faults of rows: one report of bad rows or a file that takes them, and labels that look alike."""

import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from nunatak_contract.errors import NunatakError, invalid_option
from nunatak_contract.plain_text import counted
from nunatak_rows import FileRow, RowFormat
from nunatak_training.data.examples import ReadExample, Teacher
from nunatak_training.data.rows import parse_row
from nunatak_training.kinds import TaskKind

SHOWN: Final = 10
"""Reasons of a report, and places of a reason."""
ADVICE: Final = (
    "Correct or remove what cannot be used; most commands leave such rows out with "
    "on_bad_row=skip, Python with rejected=FILE"
)


@dataclass(slots=True, kw_only=True)
class BadRows:
    """The rows of a source that give no example, in the order in which they were found."""

    source: str
    spelt: RowFormat
    teacher: Teacher | None = None
    """Whose thresholds say which labels apply to a taught text."""
    keeps_columns: bool = False
    """Whether the rows of good examples keep their values, which take memory."""
    _num_rows: int = 0
    _found: list[tuple[FileRow, NunatakError]] = field(
        default_factory=list[tuple[FileRow, NunatakError]]
    )

    def examples(self, rows: Iterable[FileRow] | None, kind: TaskKind) -> list[ReadExample]:
        read = list[ReadExample]()
        for row in rows or ():
            self._num_rows += 1
            try:
                found = parse_row(row, kind, self.spelt, self.teacher)
            except NunatakError as error:
                # A column that the header lacks is missing in every row.
                is_of_all = error.code == "missing_column" and row.header is not None
                if is_of_all or error.code == "invalid_option":
                    raise
                self._found.append((row, error))
                continue
            place = row if self.keeps_columns else FileRow(file=row.file, number=row.number)
            read += [ReadExample(row=place, example=it) for it in found]
        return read

    def without(
        self, read: Iterable[ReadExample], fault_of: Callable[[ReadExample], NunatakError | None]
    ) -> list[ReadExample]:
        good = list[ReadExample]()
        for it in read:
            error = fault_of(it)
            if error is None:
                good.append(it)
            else:
                self._found.append((it.row, error))
        return good

    def settle(self) -> None:
        """Raise, unless there are no bad rows or the file of `spelt` takes them."""
        path = self.spelt.rejected
        if path is None:
            codes = {error.code for _, error in self._found}
            is_of_all = len(self._found) == self._num_rows and codes == {"missing_column"}
            if len(self._found) == 1 or is_of_all:
                error = self._found[0][1]
                if not is_of_all:
                    error.args = (f"{error.problem}. {ADVICE}",)
                raise error
            if self._found:
                raise NunatakError("invalid_row", where=self.source, problem=self._report())
            return
        lines = [
            # Rows in memory count from 0, so a number would tell of another row.
            ({"file": row.file, "row": row.number} if row.number else {"place": row.where})
            | {"code": error.code, "reason": _reason(error)}
            for row, error in self._found
        ]
        try:
            # The file of an earlier run would tell of rows that this run has used.
            path.unlink(missing_ok=True)
            if lines:
                path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        except OSError as error:
            raise invalid_option(f"{path} cannot be written: {error.strerror}") from error

    def _report(self) -> str:
        by_reason = defaultdict[str, list[FileRow]](list)
        for row, error in self._found:
            by_reason[_reason(error)].append(row)
        ordered = sorted(by_reason.items(), key=lambda it: -len(it[1]))
        shown = "; ".join(
            f"{len(rows):,}: {text} ({_places(rows)})" for text, rows in ordered[:SHOWN]
        )
        more = f"; and {len(ordered) - SHOWN:,} other reasons" if len(ordered) > SHOWN else ""
        return (
            f"{len(self._found):,} of {counted(self._num_rows, 'row')} cannot be used. "
            f"{shown}{more}. {ADVICE}"
        )


def _reason(error: NunatakError) -> str:
    return str(error).removeprefix(f"{error.fields.get('where')}: ")


def _places(rows: Sequence[FileRow]) -> str:
    dots = ", ..." if len(rows) > SHOWN else ""
    return ", ".join(row.where for row in rows[:SHOWN]) + dots


INVISIBLE: Final = frozenset({"Cc", "Cf"})
"""Categories of characters that nobody sees: controls, joiners, marks of byte order."""
TWINS: Final = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u03bf", "aeopcyxijso"
)
"""Letters of Cyrillic and Greek that look like Latin ones, in small letters."""
NUMBERS: Final = {"true": "1", "false": "0", "1.0": "1", "0.0": "0"}
"""Other forms of the numbers that programs write for true and false."""
SEPARATORS: Final = re.compile(r"[\s_-]+")
TYPO_LETTERS: Final = 5
"""Least letters of a label that may have a typo; shorter words are often one letter apart."""
TYPO_SHARE: Final = 10
"""A label with a typo has at most one example for so many of the right label."""


def look_alikes(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return pairs of labels that look alike, the rarer one first; the largest pair is the first.

    Two labels look alike if they differ only in case, white space, `_` and `-`, Unicode form
    (NFKC), invisible characters or letters of another script, or mean true or false in words and
    numbers, or if a rare one differs from a frequent one by one letter: a letter more, less, other,
    or two neighbours in the wrong order.
    """
    ways = defaultdict[str, list[str]](list)
    for label in sorted(counts, key=lambda it: (-counts[it], it)):
        ways[_folded(label)].append(label)
    pairs = [(other, labels[0]) for labels in ways.values() for other in labels[1:]]
    pairs += _typos({folded: (labels[0], counts[labels[0]]) for folded, labels in ways.items()})
    return sorted(pairs, key=lambda it: (-counts[it[0]], it))


def spelt_out(one: str, other: str) -> tuple[str, str]:
    """As people can tell them apart: in ASCII if they look the same."""
    forms = [unicodedata.normalize("NFC", it).translate(TWINS) for it in (one, other)]
    return (ascii(one), ascii(other)) if forms[0] == forms[1] else (repr(one), repr(other))


def _folded(label: str) -> str:
    plain = unicodedata.normalize("NFKC", label)
    visible = (it for it in plain if it.isspace() or unicodedata.category(it) not in INVISIBLE)
    # A sign at an end has a meaning: the grade `A-`, the value `-1`.
    folded = SEPARATORS.sub(" ", "".join(visible).strip().casefold().translate(TWINS))
    return NUMBERS.get(folded, folded)


def _typos(labels: Mapping[str, tuple[str, int]]) -> Iterator[tuple[str, str]]:
    near = defaultdict[str, set[str]](set)
    for folded in labels:
        if len(folded) >= TYPO_LETTERS:
            for it in {folded, *_shorter(folded)}:
                near[it].add(folded)
    for folded, (label, count) in labels.items():
        found = {other for it in {folded, *_shorter(folded)} for other in near.get(it, ())}
        frequent = [it for it in found if labels[it][1] >= TYPO_SHARE * count and it != folded]
        frequent = [it for it in frequent if _is_one_letter(folded, it)]
        if frequent:
            yield label, max((labels[it] for it in frequent), key=lambda it: it[1])[0]


def _shorter(text: str) -> Iterator[str]:
    """Yield a text without each of its letters; texts one letter apart share one of these."""
    return (text[:place] + text[place + 1 :] for place in range(len(text)))


def _is_one_letter(one: str, other: str) -> bool:
    """Whether two texts are one typo apart. Numbers in names are meant: `type1` and `type2`."""
    begin = 0
    while begin < min(len(one), len(other)) and one[begin] == other[begin]:
        begin += 1
    end = 0
    while end < min(len(one), len(other)) - begin and one[-1 - end] == other[-1 - end]:
        end += 1
    left, right = one[begin : len(one) - end], other[begin : len(other) - end]
    if any(map(str.isdigit, left + right)):
        return False
    return max(len(left), len(right)) == 1 or (len(left) == 2 and left == right[::-1])
