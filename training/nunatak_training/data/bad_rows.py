"""Bad rows of examples: one report of all of them, or a file that takes them."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from nunatak_contract.errors import NunatakError
from nunatak_contract.plain_text import counted
from nunatak_rows import FileRow, RowFormat
from nunatak_training.data.examples import ReadExample
from nunatak_training.data.rows import parse_row
from nunatak_training.kinds import TaskKind

SHOWN: Final = 10
"""Reasons of a report, and places of a reason."""


@dataclass(slots=True, kw_only=True)
class BadRows:
    """The rows of a source that give no example, in the order in which they were found."""

    source: str
    spelt: RowFormat
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
                found = parse_row(row, kind, self.spelt)
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
        self, read: Sequence[ReadExample], fault_of: Callable[[ReadExample], NunatakError | None]
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
                raise self._found[0][1]
            if self._found:
                raise NunatakError("invalid_row", where=self.source, problem=self._report())
            return
        lines = [
            {"file": row.file, "row": row.number, "code": error.code, "reason": _reason(error)}
            for row, error in self._found
        ]
        try:
            # The file of an earlier run would tell of rows that this run has used.
            path.unlink(missing_ok=True)
            if lines:
                path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        except OSError as error:
            problem = f"{path} cannot be written: {error.strerror}"
            raise NunatakError("invalid_option", problem=problem) from error

    def _report(self) -> str:
        by_reason = defaultdict[str, list[FileRow]](list)
        for row, error in self._found:
            by_reason[_reason(error)].append(row)
        ordered = sorted(by_reason.items(), key=lambda it: -len(it[1]))
        shown = "; ".join(f"{len(rows):,}: {text} ({_places(rows)})" for text, rows in ordered[:10])
        more = f"; and {len(ordered) - SHOWN:,} other reasons" if len(ordered) > SHOWN else ""
        return (
            f"{len(self._found):,} of {counted(self._num_rows, 'row')} cannot be used. "
            f"{shown}{more}. Correct these rows, or leave them out with --on-bad-row skip"
        )


def _reason(error: NunatakError) -> str:
    return str(error).removeprefix(f"{error.fields.get('where')}: ")


def _places(rows: Sequence[FileRow]) -> str:
    dots = ", ..." if len(rows) > SHOWN else ""
    return ", ".join(row.where for row in rows[:SHOWN]) + dots
