"""The forms of one request, in the order in which it takes them.

    PredictionRequest -> AskedTask with its RowSpecs -> PendingRows -> RowAnswers
        -> TaskOutcome -> TaskPrediction or TaskFailure -> StreamedResult or Predictions

`RowSpec`, `PendingRow` and `RowAnswer` belong to the scheduler, which takes rows of all requests.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from nunatak_contract.enums import HeadKind, ProblemType
from nunatak_contract.errors import NunatakError
from nunatak_contract.inputs import Input
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.wire import PredictedValue
from nunatak_server.access.keys import ALL_TASKS, TaskList
from nunatak_server.errors import DeadlineExceededError, DeadlineTooShortError
from nunatak_server.outputs.entities import Join
from nunatak_server.outputs.outputs import Output, PredictionOptions, outputs_of, predictions_of
from nunatak_server.rollouts.choice import Arm
from nunatak_server.rollouts.shadows import ShadowRun
from nunatak_server.scheduler.rows import ANONYMOUS, Priority, RowAnswer, RowSpec
from nunatak_server.telemetry.records import OK, VersionWork
from nunatak_server.tokenization import Encodings, Extent

BACKBONE: Final = "(backbone)"
"""The backbone's name where turns are taken and answers counted; no task can have this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionRequest:
    """What is asked: every task about every input."""

    references: tuple[str, ...]
    inputs: tuple[Input, ...]
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
class EmbeddingRequest:
    """Texts that the backbone itself is asked about."""

    inputs: tuple[str, ...]
    truncates: bool
    normalises: bool
    deadline_s: float
    caller: str = ANONYMOUS
    """Whose turn it takes in batches, and whose share of the queue."""
    priority: Priority = Priority.NORMAL


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTask:
    """A task version that is asked, what it reads for each input, and its rows."""

    reference: str
    manifest: TaskManifest
    encodings: Sequence[Encodings]
    extents: tuple[Extent, ...]
    """How much that is, by input."""
    rows: tuple[RowSpec, ...]
    """One for each encoding, input by input."""
    arm: Arm | None = None
    """Which version of its alias it is, where that is split."""
    shadow: ShadowRun | None = None
    """What runs along, in the same batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedBackbone:
    """The backbone, asked for the vector of each text: an `AskedTask` without a version."""

    rows: tuple[RowSpec, ...]
    """One for each text."""

    @property
    def num_tokens(self) -> int:
        """Tokens that are read for all texts."""
        return sum(row.encoding.num_tokens for row in self.rows)

    @property
    def is_cut(self) -> bool:
        """Whether a part of a text is not read."""
        return any(row.encoding.part.num_left_out for row in self.rows)


RowOutcomes = Sequence[RowAnswer | NunatakError]
"""What became of the rows of one version: one outcome for each, or one failure for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailure:
    """Why one task has no answer."""

    reference: str
    error: NunatakError
    task: str | None = None
    """The task's name, where it is certain that there is such a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """What became of one task of a request, before it is put in words."""

    asked: AskedTask | TaskFailure
    """What was asked, or why nothing was."""
    rows: RowOutcomes = ()
    tokenize_s: float = 0.0
    refusal: NunatakError | None = None
    """What refused this task together with all others that were not answered by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPrediction:
    """One task version's answer: one output for each input."""

    reference: str
    task: str
    version: int
    head: HeadKind
    problem_type: ProblemType | None
    outputs: tuple[Output, ...]
    predicted: tuple[PredictedValue, ...] | None
    """What a sequence classification predicts for each input; None for other heads."""
    extents: tuple[Extent, ...]
    """How much was read for each input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Where the time of a request went: of its slowest row, where rows differ."""

    queue_s: float = 0.0
    tokenize_s: float = 0.0
    compute_s: float = 0.0
    batch_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedResult:
    """One task's answer or failure, and where the time went until it was there."""

    result: TaskPrediction | TaskFailure
    timings: StageTimes
    refusal: NunatakError | None = None
    """What the request fails with as a whole if none of its tasks fares better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """The answers, in the order of the request's references."""

    results: tuple[TaskPrediction | TaskFailure, ...]
    timings: StageTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """One vector for each text, in order, and the tokens that were read for all of them."""

    vectors: tuple[list[float], ...]
    num_tokens: int
    is_cut: bool
    """Whether a part of a text was not read."""
    timings: StageTimes


def result_of(
    request: PredictionRequest, outcome: TaskOutcome, *, join: Join
) -> TaskPrediction | TaskFailure:
    """Return one task's answer about all inputs of a request, or its first failure."""
    asked = outcome.asked
    if isinstance(asked, TaskFailure):
        return asked
    manifest = asked.manifest
    logits = list[list[float]]()
    for row in outcome.rows:
        if not isinstance(row, RowAnswer):
            return TaskFailure(reference=asked.reference, error=row, task=manifest.task)
        logits.append(row.logits)
    return TaskPrediction(
        reference=asked.reference,
        task=manifest.task,
        version=manifest.version,
        head=manifest.head.kind,
        problem_type=manifest.head.problem_type,
        predicted=predictions_of(manifest.head, asked.encodings, logits),
        outputs=outputs_of(
            manifest.head,
            request.inputs,
            asked.encodings,
            logits,
            options=request.options,
            join=join,
        ),
        extents=asked.extents,
    )


def timings_of(rows: Iterable[RowAnswer | NunatakError], tokenize_s: float) -> StageTimes:
    """Return where the time went; failed rows have no times."""
    answers = [row for row in rows if isinstance(row, RowAnswer)]
    return StageTimes(
        queue_s=max((answer.queue_s for answer in answers), default=0.0),
        tokenize_s=tokenize_s,
        compute_s=max((answer.compute_s for answer in answers), default=0.0),
        batch_rows=max((answer.batch_rows for answer in answers), default=0),
    )


def lateness_of(outcomes: Sequence[TaskOutcome]) -> DeadlineExceededError | None:
    """Return what a request fails with because it is late as a whole; None: it is not.

    It is late if no task can answer before the deadline, or if tasks were asked and none of their
    rows was in time.
    """
    if any(isinstance(row, RowAnswer) for it in outcomes for row in it.rows):
        return None
    unasked = [it.asked.error for it in outcomes if isinstance(it.asked, TaskFailure)]
    too_short = [error for error in unasked if isinstance(error, DeadlineTooShortError)]
    if len(too_short) == len(outcomes):
        return too_short[0] if too_short else None
    asked = [it.rows for it in outcomes if isinstance(it.asked, AskedTask)]
    late = (isinstance(row, DeadlineExceededError) for rows in asked for row in rows)
    return DeadlineExceededError() if asked and all(late) else None


def version_record(asked: AskedTask, rows: RowOutcomes) -> VersionWork:
    """Return what a version made of its rows, for those who observe predictions."""
    failed = next((row for row in rows if not isinstance(row, RowAnswer)), None)
    computed = (row for row in rows if isinstance(row, RowAnswer))
    return VersionWork(
        task=asked.manifest.task,
        version=asked.manifest.version,
        outcome=OK if failed is None else failed.code,
        num_rows=len(asked.rows),
        num_tokens=sum(row.trunk_tokens + row.branch_tokens for row in asked.rows),
        slowest=max(computed, key=_total_s, default=None),
    )


def _total_s(answer: RowAnswer) -> float:
    return answer.queue_s + answer.compute_s


def normalised(vector: Sequence[float]) -> list[float]:
    """Return the vector at length one; one without length is returned as it is."""
    length = math.hypot(*vector)
    return [value / length for value in vector] if length else list(vector)
