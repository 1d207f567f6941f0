"""Recording: what each version made of its rows, for those who observe predictions.

Predictions: what is asked, what is answered, and how logits of rows become answers of tasks.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nunatak_contract.enums import HeadKind
from nunatak_contract.manifest import TaskManifest
from nunatak_server.access.keys import ALL_TASKS, TaskList
from nunatak_server.errors import ServerError
from nunatak_server.failures import KnownError
from nunatak_server.inputs import TaskInput
from nunatak_server.outputs.entities import Join
from nunatak_server.outputs.outputs import Output, PredictionOptions, ReadRow, output_of
from nunatak_server.predict.ask import Answers
from nunatak_server.rollouts.choice import Arm
from nunatak_server.scheduler.rows import ANONYMOUS, Priority, RowAnswer, RowOutcome, VersionRows
from nunatak_server.telemetry.records import OK, VersionRecord
from nunatak_server.tokenization import Encodings, Extent


def record_versions(
    asked: Sequence[VersionRows], answers: Sequence[Answers]
) -> tuple[VersionRecord, ...]:
    """Say what each version made of its rows."""
    return tuple(_record(rows, answer) for rows, answer in zip(asked, answers, strict=True))


def _record(asked: VersionRows, answer: Answers) -> VersionRecord:
    outcomes = answer if isinstance(answer, list) else []
    failures = [it for it in outcomes if isinstance(it, ServerError)]
    computed = [it for it in outcomes if isinstance(it, RowAnswer)]
    failed = failures[0] if isinstance(answer, list) and failures else answer
    return VersionRecord(
        task=asked.manifest.task,
        version=asked.manifest.version,
        outcome=OK if isinstance(failed, list) else failed.code,
        num_rows=len(asked.rows),
        num_tokens=sum(row.trunk_tokens + row.branch_tokens for row in asked.rows),
        slowest=max(computed, key=_total_s, default=None),
    )


def _total_s(answer: RowAnswer) -> float:
    return answer.queue_s + answer.compute_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionRequest:
    """What is asked: every task about every input."""

    references: tuple[str, ...]
    inputs: tuple[TaskInput, ...]
    options: PredictionOptions
    deadline_s: float
    tasks: TaskList = ALL_TASKS
    """The tasks that the caller knows of; others are answered as if they did not exist."""
    caller: str = ANONYMOUS
    """Whose turn it takes in batches, and whose share of the queue."""
    priority: Priority = Priority.NORMAL
    routing_key: str | None = None
    """Requests of one key get one version of a split alias."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTask:
    """A version that is asked, and what it reads for each input."""

    manifest: TaskManifest
    encodings: Sequence[Encodings]
    extents: tuple[Extent, ...]
    """How much that is, by input."""
    arm: Arm | None = None
    """Which version of its alias it is, where that is split."""
    shadow: TaskManifest | None = None
    """What runs along, and what that reads for each input."""
    shadow_encodings: Sequence[Encodings] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPrediction:
    """One task version's answer: one output for each input."""

    reference: str
    task: str
    version: int
    head: HeadKind
    outputs: tuple[Output, ...]
    extents: tuple[Extent, ...]
    """How much was read for each input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailure:
    """Why one task has no answer."""

    reference: str
    error: KnownError
    task: str | None = None
    """The task's name, where it is certain that there is such a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where the time of a request went: of its slowest row, where rows differ."""

    queue_s: float = 0.0
    tokenize_s: float = 0.0
    compute_s: float = 0.0
    batch_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The answers, in the order of the request's references."""

    results: tuple[TaskPrediction | TaskFailure, ...]
    timings: Timings
    lateness: ServerError | None = None
    """What the request fails with as a whole, because none of its tasks was in time."""


def failure_of(reference: str, asked: AskedTask, error: KnownError) -> TaskFailure:
    """Return why a task that was asked has no answer."""
    return TaskFailure(reference=reference, error=error, task=asked.manifest.task)


def results_of(
    request: PredictionRequest,
    asked: Sequence[AskedTask | TaskFailure],
    outcomes: Sequence[RowOutcome],
    *,
    join: Join,
) -> tuple[TaskPrediction | TaskFailure, ...]:
    """Turn outcomes, task by task and input by input, into one result per reference.

    `asked` holds, for each reference, the task that was asked or the reason why none was; only
    tasks have outcomes, one for each of their encodings.
    """
    remaining = iter(outcomes)
    results: list[TaskPrediction | TaskFailure] = []
    for reference, task in zip(request.references, asked, strict=True):
        if isinstance(task, AskedTask):
            results.append(_result(reference, request, task, remaining, join))
        else:
            results.append(task)
    return tuple(results)


def _result(
    reference: str,
    request: PredictionRequest,
    asked: AskedTask,
    remaining: Iterator[RowOutcome],
    join: Join,
) -> TaskPrediction | TaskFailure:
    manifest = asked.manifest
    outputs: list[Output] = []
    # Every outcome of the task is taken, also after a failure: the next ones are another task's.
    counts = [len(encodings) for encodings in asked.encodings]
    taken = [list(itertools.islice(remaining, count)) for count in counts]
    for item, encodings, outcomes in zip(request.inputs, asked.encodings, taken, strict=True):
        rows: list[ReadRow] = []
        for encoding, outcome in zip(encodings, outcomes, strict=True):
            if isinstance(outcome, ServerError):
                return failure_of(reference, asked, outcome)
            rows.append(ReadRow(encoding=encoding, logits=outcome.logits))
        outputs.append(output_of(manifest.head, item, rows, options=request.options, join=join))
    return TaskPrediction(
        reference=reference,
        task=manifest.task,
        version=manifest.version,
        head=manifest.head.kind,
        outputs=tuple(outputs),
        extents=asked.extents,
    )


def timings_of(outcomes: Sequence[RowOutcome], tokenize_s: float) -> Timings:
    """Return where the time went; failed rows have no times."""
    answers = [outcome for outcome in outcomes if isinstance(outcome, RowAnswer)]
    return Timings(
        queue_s=max((answer.queue_s for answer in answers), default=0.0),
        tokenize_s=tokenize_s,
        compute_s=max((answer.compute_s for answer in answers), default=0.0),
        batch_rows=max((answer.batch_rows for answer in answers), default=0),
    )
