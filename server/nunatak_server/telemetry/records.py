"""Records of answered requests, for metrics, logs and traces.

A record holds names, counts and times, and nothing of the input. Times are readings of the
monotonic clock, in seconds.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from nunatak_server.scheduler.rows import RowAnswer

OK: Final = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionWork:
    task: str
    version: int
    outcome: str
    num_rows: int
    num_tokens: int
    """Tokens of the rows, counted as trunk and as branch, shared or not."""
    slowest: RowAnswer | None
    """The row that was answered last, which gives the times; None if no row was computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionRecord:
    tokenize_started_at: float
    tokenize_s: float
    versions: tuple[VersionWork, ...]


PredictionObserver = Callable[[PredictionRecord], None]
"""Receives each prediction, on the event loop, in the context of its request."""


@dataclass(slots=True, kw_only=True)
class RequestNotes:
    """Facts about a request for its log line, which only inner layers know."""

    predictions: list[PredictionRecord] = field(default_factory=list[PredictionRecord])
    """One record, or one for each part of a stream."""
    task: str | None = None
    """The task or version that the request has looked up and found."""


current_notes: ContextVar[RequestNotes | None] = ContextVar("nunatak_request_notes", default=None)
"""The notes of the request in whose context the code runs."""


def note_prediction(record: PredictionRecord) -> None:
    notes = current_notes.get()
    if notes is not None:
        notes.predictions.append(record)


def note_task(name: str) -> None:
    notes = current_notes.get()
    if notes is not None:
        notes.task = name
