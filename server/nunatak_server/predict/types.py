"""The types of one request, in the order of its life.

    PredictionRequest -> AskedTask with its RowSpecs -> PendingRows -> RowAnswers
        -> TaskPrediction or TaskFailure -> StreamedResult or Predictions

`RowSpec`, `PendingRow` and `RowAnswer` belong to the scheduler, which plans rows of all requests.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Final, Self, TypeVar

from nunatak_contract.enums import HeadKind, ProblemType
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.policies import Condition
from nunatak_contract.requests import Input, Inputs, Parameters
from nunatak_contract.wire import PredictedValue
from nunatak_model import Encoding
from nunatak_server.access.keys import ALL_TASKS, TaskList
from nunatak_server.errors import DeadlineExceededError, DeadlineTooShortError
from nunatak_server.outputs.conditions import States, states_of
from nunatak_server.outputs.entities import Join
from nunatak_server.outputs.outputs import DEFAULT_OPTIONS, Output, outputs_of
from nunatak_server.predict.growing import Growing
from nunatak_server.rollouts.rollouts import OWN_KEYS, Arm, ShadowRun
from nunatak_server.scheduler.rows import ANONYMOUS, Priority, RowAnswer, RowOutcome, RowSpec
from nunatak_server.scheduler.turns import Check
from nunatak_server.telemetry.metrics import OK, VersionWork
from nunatak_server.tokenization import Encodings, Extent, Reading

T = TypeVar("T")
BACKBONE: Final = "(backbone)"
"""The backbone's name in turns and counters. No task can have this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handling:
    """Who asks, and how a request is handled, whatever it asks."""

    default_deadline_s: float
    own_deadline_s: float | None = None
    """The caller's own deadline; None means the default."""
    caller: str = ANONYMOUS
    """The name of the caller, for turns in batches and shares of the queue."""
    tasks: TaskList = ALL_TASKS
    """The tasks of the caller. Other tasks are answered as if they did not exist."""
    priority: Priority = Priority.NORMAL
    routing_key: str = field(default_factory=lambda: next(OWN_KEYS))
    """Requests with one key get one version of an alias with a canary, and so do all references and
    texts of one request."""

    @property
    def deadline_s(self) -> float:
        return self.default_deadline_s if self.own_deadline_s is None else self.own_deadline_s


class LiteralText(Parameters):
    """The options for texts that cannot hide a part of themselves behind `[SEP]`."""

    is_literal: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionRequest:
    """A request: every task about every input."""

    references: tuple[str, ...]
    inputs: tuple[Input, ...]
    handling: Handling
    options: Parameters = DEFAULT_OPTIONS
    conditions: tuple[Condition, ...] = ()
    """The conditions of a policy. A request with conditions gets their states, and no outputs."""
    growing: Growing | None = None
    """What is known of the text of a stream, which is the only input."""
    is_call: bool = False
    """Whether the inputs are the texts of a call to a language model, which cannot be split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest:
    """Texts for the backbone itself."""

    inputs: tuple[str, ...]
    handling: Handling
    truncates: bool
    normalises: bool
    backbone: str
    """The digest of the backbone."""
    is_literal: bool = False
    """Whether special tokens in a text are plain text."""


RowOutcomes = Sequence[RowOutcome]
"""The outcomes of one version's rows: one for each row, or one failure for all rows."""


@dataclass(slots=True, kw_only=True, eq=False)
class AskedTask:
    """A task of a request on its way: its version is chosen, reads the inputs, and is answered."""

    reference: str
    manifest: TaskManifest
    arm: Arm | None
    """Whether the version is the canary or the alias's own; None without a canary."""
    shadow: TaskManifest | None
    reading: Reading
    join: Join
    """Joins tokens of the version's backbone to running text."""
    encodings: Sequence[Encodings] = ()
    """The tokens of each input, once they are read."""
    extents: Sequence[Extent] = ()
    """Numbers of read and unread tokens of each input."""
    output_work: int = 0
    """The work to make the outputs, in logits."""
    known: Mapping[Encoding, RowAnswer] = field(default_factory=dict[Encoding, RowAnswer])
    """What the version has answered before."""
    unknown: Sequence[Encoding] | None = None
    """The encodings to ask about, each once; None asks about all, input by input."""
    rows: Sequence[RowSpec] = ()
    """One row for each encoding to ask about."""
    shadow_run: ShadowRun | None = None
    """The shadow's rows, which run in the same batch."""
    outcomes: RowOutcomes = ()

    def outcomes_of_all(self) -> RowOutcomes:
        """Return the outcome for each encoding, input by input.

        One failure for all rows stands alone, if nothing can be known.
        """
        if self.unknown is None:
            return self.outcomes
        is_each = len(self.outcomes) == len(self.unknown)
        outcomes = self.outcomes if is_each else [*self.outcomes] * len(self.unknown)
        found = {**self.known, **dict(zip(self.unknown, outcomes, strict=True))}
        return [found[it] for it in chain.from_iterable(self.encodings)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailure:
    reference: str
    error: NunatakError
    task: str | None = None
    """The task's name; None unless the task certainly exists."""
    refuses_request: bool = False
    """Whether the error refuses the whole request."""
    states: tuple[States, ...] = ()
    """What the task has found in each text before it failed."""


Asked = AskedTask | TaskFailure
Arrival = tuple[Asked, float]
"""An answered or failed task of a stream, and the seconds of the tokenizer for its part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPrediction:
    """One task version's answer: one output for each input, or the states of conditions."""

    reference: str
    task: str
    version: int
    head: HeadKind
    problem_type: ProblemType | None
    labels: tuple[str, ...]
    """The labels in the order of the head's outputs."""
    outputs: tuple[Output, ...] = ()
    states: tuple[States, ...] = ()
    """What each text says about the request's conditions."""
    predicted: tuple[PredictedValue, ...] | None = None
    """What a sequence classification predicts for each input; None for other heads."""
    extents: Sequence[Extent]
    """Numbers of read and unread tokens of each input."""

    @classmethod
    def of(
        cls,
        reference: str,
        manifest: TaskManifest,
        extents: Sequence[Extent],
        *,
        outputs: tuple[Output, ...] = (),
        predicted: tuple[PredictedValue, ...] | None = None,
        states: tuple[States, ...] = (),
    ) -> Self:
        """Return what a version says."""
        return cls(
            reference=reference,
            task=manifest.task,
            version=manifest.version,
            head=manifest.head.kind,
            problem_type=manifest.head.problem_type,
            labels=tuple(manifest.head.labels),
            outputs=outputs,
            states=states,
            predicted=predicted,
            extents=extents,
        )


TaskAnswer = TaskPrediction | TaskFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """The timings of a request; if rows differ, of the slowest row."""

    queue_s: float = 0.0
    tokenize_s: float = 0.0
    compute_s: float = 0.0
    batch_rows: int = 0

    @classmethod
    def slowest(cls, times: Iterable[Self]) -> Self:
        found = (cls(), *times)
        return cls(
            queue_s=max(it.queue_s for it in found),
            tokenize_s=max(it.tokenize_s for it in found),
            compute_s=max(it.compute_s for it in found),
            batch_rows=max(it.batch_rows for it in found),
        )

    def with_rows(self, rows: Iterable[RowOutcome]) -> "StageTimes":
        found = (self, *(row for row in rows if isinstance(row, RowAnswer)))
        return StageTimes(
            tokenize_s=self.tokenize_s,
            queue_s=max(it.queue_s for it in found),
            compute_s=max(it.compute_s for it in found),
            batch_rows=max(it.batch_rows for it in found),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedResult:
    result: TaskAnswer
    timings: StageTimes

    @property
    def refusal(self) -> NunatakError | None:
        """The failure of the whole request, if no task has an answer."""
        match self.result:
            case TaskFailure(error=error, refuses_request=True):
                return error
            case TaskFailure(error=DeadlineExceededError() as error, states=()):
                return error
            case _:
                return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """The answers, in the order of the request's references."""

    results: tuple[TaskAnswer, ...]
    timings: StageTimes

    @property
    def failures(self) -> tuple[TaskFailure, ...]:
        return tuple(it for it in self.results if isinstance(it, TaskFailure))


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """One vector for each text, in order, and the number of tokens read of all texts."""

    vectors: tuple[list[float], ...]
    num_tokens: int
    is_cut: bool
    """Whether a part of a text was not read."""
    num_unread: tuple[int, ...]
    """Characters of each text that no token stands for."""
    timings: StageTimes


def result_of(request: PredictionRequest, asked: Asked, check: Check | None = None) -> TaskAnswer:
    """Return one task's answer about all inputs of a request, or its first failure.

    `check` is called before each window of a text.
    """
    if isinstance(asked, TaskFailure):
        return asked
    manifest = asked.manifest
    outcomes = asked.outcomes_of_all()
    logits = list[Sequence[float]]()
    for row in outcomes:
        if not isinstance(row, RowAnswer):
            states = _found_before(request, asked, outcomes)
            return TaskFailure(
                reference=asked.reference, error=row, task=manifest.task, states=states
            )
        logits.append(row.logits)
    head, read, rows = manifest.head, asked.encodings, _checked(logits, check)
    answer = partial(TaskPrediction.of, asked.reference, manifest, asked.extents)
    if request.conditions:
        own = _conditions_of(request, asked)
        return answer(states=states_of(head, own, request.inputs, read, rows))
    outputs, predicted = outputs_of(
        head, request.inputs, read, rows, options=request.options, join=asked.join
    )
    return answer(outputs=outputs, predicted=predicted)


def _conditions_of(request: PredictionRequest, asked: AskedTask) -> list[Condition]:
    return [it for it in request.conditions if it.task == asked.reference]


def _found_before(
    request: PredictionRequest, asked: AskedTask, outcomes: RowOutcomes
) -> tuple[States, ...]:
    """Return what the answered rows of a task that fails have found; empty without a finding."""
    if not request.conditions or len(outcomes) != sum(map(len, asked.encodings)):
        return ()
    rows, read, logits = iter(outcomes), list[Encodings](), list[Sequence[float]]()
    for encodings in asked.encodings:
        pairs = zip(encodings, rows, strict=False)
        answered = [(it, row.logits) for it, row in pairs if isinstance(row, RowAnswer)]
        read.append(tuple(it for it, _ in answered))
        logits += [it for _, it in answered]
    own, head = _conditions_of(request, asked), asked.manifest.head
    states = states_of(head, own, request.inputs, read, logits)
    return states if any(it.holds for each in states for it in each.values()) else ()


def _checked(rows: Iterable[Sequence[float]], check: Check | None) -> Iterator[Sequence[float]]:
    for row in rows:
        if check is not None:
            check()
        yield row


def late_result(asked: Asked) -> TaskFailure:
    if isinstance(asked, TaskFailure):
        return asked
    error = DeadlineExceededError()
    return TaskFailure(reference=asked.reference, error=error, task=asked.manifest.task)


def lateness_of(answered: Sequence[Asked]) -> DeadlineExceededError | None:
    """Return the failure of a late request; None if the request is not late.

    A request is late if no task can answer before the deadline, or if all rows of all asked tasks
    were late.
    """
    asked = [it for it in answered if isinstance(it, AskedTask)]
    if any(isinstance(row, RowAnswer) for it in asked for row in it.outcomes):
        return None
    unasked = [it.error for it in answered if isinstance(it, TaskFailure)]
    too_short = [error for error in unasked if isinstance(error, DeadlineTooShortError)]
    if len(too_short) == len(answered):
        return too_short[0] if too_short else None
    late = (isinstance(row, DeadlineExceededError) for it in asked for row in it.outcomes)
    return DeadlineExceededError() if asked and all(late) else None


def version_record(asked: AskedTask) -> VersionWork:
    answers = [row for row in asked.outcomes if isinstance(row, RowAnswer)]
    failed = next((row for row in asked.outcomes if not isinstance(row, RowAnswer)), None)
    return VersionWork(
        task=asked.manifest.task,
        version=asked.manifest.version,
        outcome=OK if failed is None else failed.code,
        num_rows=len(asked.rows),
        num_tokens=sum(row.trunk_tokens + row.branch_tokens for row in asked.rows),
        slowest=max(answers, key=lambda it: it.queue_s + it.compute_s, default=None),
    )


def normalised(vector: Sequence[float]) -> list[float]:
    """Return the vector at length one; a zero vector is returned unchanged."""
    length = math.hypot(*vector)
    return [value / length for value in vector] if length else list(vector)


def as_sent(values: Sequence[T], inputs: Inputs) -> T | list[T]:
    return list(values) if isinstance(inputs, list) else values[0]


def prediction_fields(result: TaskPrediction, inputs: Inputs) -> dict[str, Any]:
    return {
        "task": result.task,
        "version": result.version,
        "head": result.head,
        "problem_type": result.problem_type,
        "predicted": None if result.predicted is None else as_sent(result.predicted, inputs),
        "outputs": as_sent(result.outputs, inputs),
        "tokens": as_sent([extent.num_tokens for extent in result.extents], inputs),
        "truncated": as_sent([extent.is_cut for extent in result.extents], inputs),
        "unread": as_sent([extent.num_unread for extent in result.extents], inputs),
    }
