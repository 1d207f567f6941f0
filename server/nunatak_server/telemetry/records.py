"""Records: what became of one request, told once it is answered.

Nothing of the input is in them: names, counts and times alone. Times are readings of the
monotonic clock, in seconds.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from nunatak_server.scheduler.rows import RowAnswer

OK: Final = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    """What one task version did for a request; times are those of its slowest row."""

    task: str
    version: int
    outcome: str
    """`ok`, or the code of an error."""
    num_rows: int
    num_tokens: int
    """Of its rows, each counted as trunk and as branch, whoever shares them."""
    slowest: RowAnswer | None
    """The row that was answered last; None if none was computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionRecord:
    """What a request passed through, for each version that it could be put to."""

    tokenize_started_at: float
    tokenize_s: float
    versions: tuple[VersionRecord, ...]


PredictionObserver = Callable[[PredictionRecord], None]
"""Is told about each prediction, on the event loop, in the context of its request."""


@dataclass(slots=True, kw_only=True)
class RequestNotes:
    """What the layers below leave for the one line that the request becomes in the log."""

    predictions: list[PredictionRecord] = field(default_factory=list[PredictionRecord])
    """One, or one for each part of a stream."""
    task: str | None = None
    """What was looked up for it and found: a task or a version."""


current_notes: ContextVar[RequestNotes | None] = ContextVar("nunatak_request_notes", default=None)
"""The notes of the request that is being answered, wherever in its context one looks."""


def note_prediction(record: PredictionRecord) -> None:
    """Leave a record with the request that is being answered, if there is one."""
    notes = current_notes.get()
    if notes is not None:
        notes.predictions.append(record)


def note_task(name: str) -> None:
    """Leave a task or version that is known to exist, as `note_prediction`; the last one counts."""
    notes = current_notes.get()
    if notes is not None:
        notes.task = name
