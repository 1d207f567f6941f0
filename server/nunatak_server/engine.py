"""The engine: one thread, one device, one loop.

    event loop thread                        engine thread
    -----------------                        -------------
    submit(rows) ---- inbox ---------------> take all that arrived
                                             plan (pure)
                                             forward of the mixed batch
    future.set_result <- call_soon_threadsafe - answers, one call per batch

While a batch runs, what arrives gathers for the next one: there is no artificial waiting. Every
row is answered exactly once. A failure the engine cannot attribute to a task stops it for good:
`on_fatal` is called, and all rows are answered.
"""

import asyncio
import itertools
import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from nunatak_model import Row
from nunatak_server.batching.inbox import Inbox
from nunatak_server.batching.pace import Pace
from nunatak_server.batching.planner import (
    BatchLimits,
    BatchPlan,
    TurnOrder,
    TurnRules,
    plan_batch,
)
from nunatak_server.batching.rows import PendingRow, RowAnswer, RowOutcome
from nunatak_server.batching.shadows import plan_with_shadows
from nunatak_server.errors import (
    DeadlineExceededError,
    EngineFailedError,
    NotReadyError,
    TaskUnhealthyError,
)

Compute = Callable[[Sequence[Row]], list[list[float]]]
RowLogits = list[float] | TaskUnhealthyError
Answers = list[tuple[PendingRow, RowOutcome]]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """What one batch held and how long it took."""

    number: int
    num_rows: int
    num_tokens: int
    num_tasks: int
    num_shared_rows: int
    num_padding_saved: int
    """Tokens that the same trunk and branch rows would have cost more, had each been padded to
    the longest of its kind."""
    started_at: float
    compute_s: float


class BatchObserver(Protocol):
    """Is told about each batch, on the engine thread."""

    def observe_batch(self, report: BatchReport) -> None:
        """Record one batch."""
        ...


class BatchObservers:
    """Tells several observers, in their order."""

    def __init__(self, *observers: BatchObserver) -> None:
        self._observers = observers

    def observe_batch(self, report: BatchReport) -> None:
        """Record one batch with each."""
        for observer in self._observers:
            observer.observe_batch(report)


class Engine:
    """Owns the compute thread; all its methods are called on the event loop thread."""

    def __init__(  # noqa: PLR0913 - what it computes with, and whom it tells
        self,
        *,
        compute: Compute,
        limits: BatchLimits,
        observer: BatchObserver,
        on_fatal: Callable[[EngineFailedError], None],
        rules: TurnRules[PendingRow] | None = None,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        """`stopwatch` times batches for the pace, and is read on the thread that computes them."""
        self._compute = compute
        self._limits = limits
        self._rules = rules or TurnRules()
        self._order = TurnOrder()
        self.pace = pace or Pace()
        """How long batches take; replaced after each, and so good to read from any thread."""
        self._observer = observer
        self._on_fatal = on_fatal
        self._clock = clock
        self._stopwatch = stopwatch
        self._inbox: Inbox[PendingRow] = Inbox()
        self._numbers = itertools.count(1)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; answers go to the event loop that runs now."""
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._run, args=(loop,), name="nunatak-engine", daemon=True
        )
        self._thread.start()

    def submit(self, rows: Sequence[PendingRow]) -> None:
        """Queue rows; each one's future is resolved later.

        Raises:
            NotReadyError: the engine has stopped.
        """
        if not self._inbox.put(rows):
            raise NotReadyError("the engine has stopped")

    async def aclose(self) -> None:
        """Answer everything that was submitted, then end the thread."""
        self._inbox.close()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        pending: list[PendingRow] = []
        try:
            self._serve(loop, pending)
        except BaseException as error:
            logger.critical("the engine has failed", exc_info=error)
            self._inbox.close()
            pending.extend(self._inbox.take(block=False) or ())
            # Told first: whoever is answered must find the process no longer ready.
            loop.call_soon_threadsafe(self._on_fatal, _as_failure(error))
            stopped = NotReadyError("the engine has failed")
            _answer(loop, [(row, stopped) for row in pending])

    def _serve(self, loop: asyncio.AbstractEventLoop, pending: list[PendingRow]) -> None:
        # `pending` keeps every row until it is answered, so that `_run` can answer what is left.
        while self._serve_next(loop, pending):
            pass

    def _serve_next(self, loop: asyncio.AbstractEventLoop, pending: list[PendingRow]) -> bool:
        """Run one batch; its rows are let go on return, for they hold versions in memory."""
        arrived = self._inbox.take(block=not pending)
        if arrived is None and not pending:
            return False
        pending.extend(arrived or ())
        limits = replace(self._limits, max_work=self.pace.efficient_tokens)
        plan = plan_with_shadows(
            pending,
            limits=limits,
            plan=partial(
                plan_batch, limits=limits, now=self._clock(), order=self._order, rules=self._rules
            ),
        )
        self._order = plan.order
        _answer(loop, [(row, DeadlineExceededError()) for row in plan.expired])
        if plan.batch:
            _answer(loop, self._compute_batch(plan))
        pending[:] = plan.waiting
        return True

    def _compute_batch(self, plan: BatchPlan[PendingRow]) -> Answers:
        started, begun = self._clock(), self._stopwatch()
        computed = self._compute_rows(plan.batch)
        seconds = self._stopwatch() - begun
        compute_s = self._clock() - started
        self.pace = self.pace.after(work=plan.work, asked_work=plan.asked_work, seconds=seconds)
        report = _report(plan, next(self._numbers), started, compute_s)
        self._observer.observe_batch(report)
        return [
            (row, _outcome(row, logits, report))
            for row, logits in zip(plan.batch, computed, strict=True)
        ]

    def _compute_rows(self, rows: Sequence[PendingRow]) -> Sequence[RowLogits]:
        versions: dict[tuple[str, int], list[int]] = defaultdict(list)
        for index, row in enumerate(rows):
            versions[row.task, row.version].append(index)
        if len(versions) > 1:
            try:
                return self._forward(rows)
            except EngineFailedError:
                raise
            except Exception:
                logger.exception("a batch of %d tasks failed; trying each alone", len(versions))
        if len({row.is_shadow for row in rows}) > 1:
            return self._compute_apart(rows)
        computed: dict[int, RowLogits] = {}
        for indices in versions.values():
            outputs = self._compute_version([rows[index] for index in indices])
            computed.update(zip(indices, outputs, strict=True))
        return [computed[index] for index in range(len(rows))]

    def _compute_apart(self, rows: Sequence[PendingRow]) -> Sequence[RowLogits]:
        """Run what callers wait for as if it had no shadows, and then the shadows."""
        computed: dict[int, RowLogits] = {}
        for is_shadow in (False, True):
            indices = [index for index, row in enumerate(rows) if row.is_shadow is is_shadow]
            outputs = self._compute_rows([rows[index] for index in indices])
            computed.update(zip(indices, outputs, strict=True))
        return [computed[index] for index in range(len(rows))]

    def _compute_version(self, rows: Sequence[PendingRow]) -> Sequence[RowLogits]:
        """Run rows of one task version; its failure is its own and spares all others."""
        try:
            return self._forward(rows)
        except EngineFailedError:
            raise
        except Exception as error:
            task, version = rows[0].task, rows[0].version
            logger.exception("the forward pass of %s/%d failed", task, version)
            reason = f"fails in its forward pass ({type(error).__name__})"
            return [TaskUnhealthyError(task, version, reason)] * len(rows)

    def _forward(self, rows: Sequence[PendingRow]) -> list[list[float]]:
        return self._compute([Row(encoding=row.encoding, branch=row.branch) for row in rows])


def _outcome(row: PendingRow, logits: RowLogits, batch: BatchReport) -> RowOutcome:
    if isinstance(logits, TaskUnhealthyError):
        return logits
    if not all(map(math.isfinite, logits)):
        return TaskUnhealthyError(row.task, row.version, "gives logits that are not finite")
    return RowAnswer(
        logits=logits,
        queue_s=batch.started_at - row.submitted_at,
        compute_s=batch.compute_s,
        batch_rows=batch.num_rows,
        load_s=row.load_s,
        started_at=batch.started_at,
        batch=batch.number,
    )


def _report(
    plan: BatchPlan[PendingRow], number: int, started_at: float, compute_s: float
) -> BatchReport:
    num_on_trunk = sum(row.trunk_tokens > 0 for row in plan.batch)
    num_branch_rows = sum(row.branch_tokens > 0 for row in plan.batch)
    longest_trunk = max((row.trunk_tokens for row in plan.batch), default=0)
    longest_branch = max((row.branch_tokens for row in plan.batch), default=0)
    padded = plan.num_trunk_rows * longest_trunk + num_branch_rows * longest_branch
    return BatchReport(
        number=number,
        num_rows=len(plan.batch),
        num_tokens=plan.num_tokens,
        num_tasks=len({(row.task, row.version) for row in plan.batch}),
        num_shared_rows=num_on_trunk - plan.num_trunk_rows - plan.num_held_rows,
        num_padding_saved=padded - plan.num_tokens,
        started_at=started_at,
        compute_s=compute_s,
    )


def _answer(loop: asyncio.AbstractEventLoop, answers: Answers) -> None:
    if answers:
        loop.call_soon_threadsafe(_resolve, answers)


def _resolve(answers: Answers) -> None:
    for row, outcome in answers:
        # The caller may have gone meanwhile, which cancels the future.
        if not row.future.done():
            row.future.set_result(outcome)


def _as_failure(error: BaseException) -> EngineFailedError:
    if isinstance(error, EngineFailedError):
        return error
    failure = EngineFailedError(type(error).__name__)
    failure.__cause__ = error
    return failure
