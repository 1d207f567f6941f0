"""The progress of long work on standard error: a bar on a terminal, lines elsewhere, or JSON.

One thread reports at a time. Results go to standard output, and no progress does.
"""

import json
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from nunatak_contract.plain_text import counted, visible, visible_json

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

SILENT_S: Final = 10.0
"""Least time before a line about work that goes on: the first at once then, others at a tenth."""
EVENT_S: Final = 1.0
"""Least time before a JSON event about work that goes on."""


@dataclass(slots=True)
class Work:
    """Work that goes on: how much of it is done, since when, and how fast."""

    name: str
    unit: str = "step"
    total: int | None = None
    done: int = 0
    """Units; those that are done before the begin took none of its time."""
    share: float = 0.0
    """Of the work, from 0 to 1; with a total it follows from `done`. 0 if it is unknown."""
    note: str = ""
    begun: float = 0.0
    skipped: tuple[int, float] = (0, 0.0)
    """`done` and `share` at the begin."""

    def pace(self, now: float) -> tuple[float | None, float | None]:
        """Return units per second and the remaining seconds, each if it is known."""
        seconds = now - self.begun
        num, share = self.done - self.skipped[0], self.share - self.skipped[1]
        is_known = seconds > 0 and num > 0
        left_s = seconds * (1 - self.share) / share if is_known and share > 0 else None
        return num / seconds if is_known else None, left_s

    def facts(self, now: float) -> dict[str, object]:
        """Return the state for programs."""
        per_s, left_s = self.pace(now)
        return {
            "work": self.name,
            "unit": self.unit,
            "done": self.done,
            "total": self.total,
            "share": round(self.share, 4),
            "per_s": per_s and round(per_s, 3),
            "left_s": left_s and round(left_s, 1),
        }

    def text(self, now: float) -> str:
        """Return the state in words."""
        per_s, left_s = self.pace(now)
        of = "" if self.total is None else f"{self.done:,} of "
        parts = [of + counted(self.done if self.total is None else self.total, self.unit)]
        if per_s is not None:
            is_fast = per_s >= 1
            slow = f"{1 / per_s:.1f} s/{self.unit}"
            parts += [f"{counted(round(per_s), self.unit)}/s" if is_fast else slow]
        if left_s:
            parts += [f"{timedelta(seconds=round(left_s))} left"]
        return ", ".join([*parts, *([visible(self.note)] if self.note else [])])


class Progress:
    """Receives the progress of work; this one ignores it."""

    def begin(self, work: Work) -> None:
        """Work begins, and the work before ends."""

    def advance(self, num: int = 1, *, share: float | None = None, note: str = "") -> None:
        """Further units are done; `share` of all work is done then, absent: by the total."""

    def tell(self, text: str, **facts: object) -> None:
        """Say in words, and to programs by facts, what is done."""

    def step(self, text: str, **facts: object) -> None:
        """Count one unit as done, and tell about it."""
        self.advance()
        self.tell(text, **facts)

    def end(self) -> None:
        """Nothing more comes of this work."""


class _Lines(Progress):
    """Prints a line for each thing that is told. Silent work has a line now and then."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._work: Work | None = None
        self._last = 0.0
        self._tenths = 0

    def begin(self, work: Work) -> None:
        self.end()
        work.name, work.begun = visible(work.name), self._clock()
        work.share = work.done / work.total if work.total else work.share
        work.skipped = work.done, work.share
        self._work, self._last, self._tenths = work, work.begun, int(work.share * 10) - 1
        self._begun(work)

    def advance(self, num: int = 1, *, share: float | None = None, note: str = "") -> None:
        if (work := self._work) is not None:
            work.done += num
            work.share = (work.done / work.total if work.total else 0.0) if share is None else share
            work.note = note
            self._moved(work, self._clock())

    def tell(self, text: str, **facts: object) -> None:
        now, line = self._clock(), visible(text)
        if (work := self._work) is not None:
            work.note = ""
            line = f"{work.name}: {line}" + (f" ({work.text(now)})" if work.done else "")
        self._told(line, {"text": text, **facts}, now)

    def end(self) -> None:
        if self._work is not None:
            self._ended(self._work)
        self._work = None

    def _begun(self, work: Work) -> None: ...

    def _moved(self, work: Work, now: float) -> None:
        tenths = int(work.share * 10)
        if tenths > self._tenths and now - self._last >= SILENT_S:
            self._tenths = tenths
            self._told(f"{work.name}: {work.text(now)}", {}, now)

    def _told(self, line: str, facts: Mapping[str, object], now: float) -> None:
        self._last = now
        print(line, file=sys.stderr, flush=True)  # noqa: T201 - without control characters

    def _ended(self, work: Work) -> None: ...


class _Events(_Lines):
    """A JSON document on one line for each thing that happens."""

    def _begun(self, work: Work) -> None:
        self._print("begin", {}, work.begun)

    def _moved(self, work: Work, now: float) -> None:
        if now - self._last >= EVENT_S:
            self._print("progress", {"note": work.note}, now)

    def _told(self, line: str, facts: Mapping[str, object], now: float) -> None:
        self._print("step", facts, now)

    def _ended(self, work: Work) -> None:
        self._print("end", {}, self._clock())

    def _print(self, event: str, facts: Mapping[str, object], now: float) -> None:
        state = {} if self._work is None else self._work.facts(now)
        document = json.dumps({"event": event, **state, **facts}, default=str)
        super()._told(visible_json(document), {}, now)


class _Bars(_Lines):
    """A bar, and lines above it."""

    _bar: "RichProgress | None" = None

    def _begun(self, work: Work) -> None:
        # Only a terminal needs these modules.
        from rich.console import Console  # noqa: PLC0415, TID251
        from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

        self._bar = Progress(
            *(BarColumn(), TextColumn("{task.description}", markup=False)),
            console=Console(stderr=True, markup=False, highlight=False, emoji=False),
            transient=True,
            # Or results for a pipe would go to the terminal.
            redirect_stdout=sys.stdout.isatty(),
            refresh_per_second=4,
        )
        self._bar.add_task("", total=None)
        self._bar.start()
        self._moved(work, work.begun)

    def _moved(self, work: Work, now: float) -> None:
        if self._bar is not None:
            (row,) = self._bar.task_ids
            total = 1 if work.total or work.share else None
            text = work.name + (f": {work.text(now)}" if work.total or work.done else "")
            self._bar.update(row, total=total, completed=work.share, description=text)

    def _ended(self, work: Work) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


@contextmanager
def shown_progress(
    *, quiet: bool = False, as_json: bool = False, clock: Callable[[], float] = time.monotonic
) -> Generator[Progress]:
    """Yield the progress that standard error shows; its work ends here, also by an error."""
    chosen = _Events if as_json else _Bars if sys.stderr.isatty() else _Lines
    progress = Progress() if quiet else chosen(clock)
    try:
        yield progress
    finally:
        progress.end()
