"""The engine: one thread, one device, one loop over batches.

    event loop thread                        engine thread
    -----------------                        -------------
    submit(rows) ---- Inbox ---------------> take all rows that arrived
    withdraw(rows) -------------------------> drop rows whose caller has gone
                                             plan (pure)
                                             forward of the mixed batch
    future.set_result <- call_soon_threadsafe - answers, one call per batch

Rows that arrive while a batch runs gather for the next batch, so the engine never waits for a batch
to fill. On a CPU, light rows may preempt a heavy batch between two of its layers.
Every row is answered exactly once. A failure that belongs to no task stops the engine for good: the
engine calls `on_fatal` and answers all rows.
"""

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from nunatak_contract.errors import NunatakError
from nunatak_server.engine.compute import (
    BatchObserver,
    Compute,
    compute_rows,
    outcome_of,
    report_of,
)
from nunatak_server.errors import DeadlineExceededError, EngineFailedError
from nunatak_server.scheduler.batch_time import BatchLimits, BatchTimeModel
from nunatak_server.scheduler.planner import (
    BatchPlan,
    TurnOrder,
    TurnRules,
    add_shadows,
    plan_next,
    plan_preemption,
)
from nunatak_server.scheduler.rows import PendingRow, Queues, RowOutcome

Item = TypeVar("Item")


class Inbox(Generic[Item]):
    """A thread-safe queue from the event loop to the engine; admission bounds its length."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._items: list[Item] = []
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, items: Iterable[Item]) -> bool:
        with self._changed:
            if self._is_closed:
                return False
            self._items.extend(items)
            self._changed.notify()
            return True

    def take(self, *, block: bool) -> list[Item] | None:
        """Take all items, oldest first, with `block` at least one; None once closed and empty."""
        with self._changed:
            if block:
                self._changed.wait_for(lambda: self._items or self._is_closed)
            if not self._items and self._is_closed:
                return None
            items, self._items = self._items, []
            return items

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


Answers = list[tuple[PendingRow, RowOutcome]]

JOIN_S: Final = 5.0
"""Time for the last batches at shutdown. A process must end even if its device hangs."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Preempted:
    charged: float = 0.0
    seconds: float = 0.0


class Engine:
    """Owns the engine thread. Its methods belong to the event loop thread, unless they say more."""

    def __init__(  # noqa: PLR0913 - its collaborators, by name
        self,
        *,
        computes: Mapping[str, Compute],
        limits: BatchLimits,
        observers: Sequence[BatchObserver],
        on_fatal: Callable[[EngineFailedError], None],
        rules: TurnRules | None = None,
        time_model: BatchTimeModel | None = None,
        clock: Callable[[], float] = time.monotonic,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        """`stopwatch` times batches on the engine thread; `computes` has a forward by digest."""
        self._computes = computes
        self._limits = limits
        self._rules = rules or TurnRules()
        self._order = TurnOrder()
        self._time_model = time_model or BatchTimeModel()
        self._observers = observers
        self._on_fatal = on_fatal
        self._clock = clock
        self._stopwatch = stopwatch
        self._inbox = Inbox[PendingRow]()
        self._queues = Queues()
        self._shadows: list[PendingRow] = []
        """Shadow rows for the next batch; rows that do not fit are dropped."""
        self._batches: list[Sequence[PendingRow]] = []
        """Batches that run: each except the first runs between two layers of the one before."""
        self._numbers = itertools.count(1)
        self._moved_at = clock()
        """The time when the last batch ended, or when a row arrived at an idle engine."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows that wait or run; any thread may read it, and it may be slightly off."""
        return len(self._inbox) + len(self._queues) + sum(map(len, tuple(self._batches)))

    @property
    def num_running_requests(self) -> int:
        """Number of requests whose caller waits for a batch that runs; any thread may read it."""
        # The rows of a request have its deadline, which no other request has.
        running = itertools.chain.from_iterable(tuple(self._batches))
        return len({it.deadline for it in running if not it.is_shadow and not it.is_cancelled})

    @property
    def stalled_s(self) -> float:
        """Seconds without the end of a batch while rows wait; any thread may read it."""
        return self._clock() - self._moved_at if self.num_rows else 0.0

    def time_model(self) -> BatchTimeModel:
        """Return the time of batches. The engine replaces this value, so any thread may call."""
        return self._time_model

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="nunatak-engine", daemon=True)
        self._thread.start()

    def submit(self, rows: Sequence[PendingRow]) -> None:
        if not self.num_rows:
            self._moved_at = self._clock()
        if not self._inbox.put(rows):
            raise NunatakError("not_ready", reason="the engine has stopped")

    def withdraw(self, rows: Sequence[PendingRow]) -> None:
        """Cancel the futures of rows; the engine drops those that wait without a search."""
        for row in rows:
            row.future.cancel()
        # An answered row cannot be withdrawn, and would be computed again.
        self._inbox.put(row for row in rows if row.is_cancelled)

    async def aclose(self) -> None:
        """Answer all submitted rows, then end the thread. A thread that hangs is abandoned."""
        self._inbox.close()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, JOIN_S)
            if self._thread.is_alive():
                logger.warning("the device has not ended its last batch within %g s", JOIN_S)

    def _run(self) -> None:
        try:
            while self._serve_next():
                pass
        except BaseException as error:
            logger.critical("the engine has failed", exc_info=error)
            self._inbox.close()
            arrived = self._inbox.take(block=False) or []
            # First of all, so that callers who get an error find the process no longer ready.
            self._call(self._on_fatal, _as_failure(error))
            stopped = NunatakError("not_ready", reason="the engine has failed")
            running = itertools.chain.from_iterable(self._batches)
            rows = [*running, *self._queues, *self._shadows, *arrived]
            self._answer([(row, stopped) for row in rows])

    def _answer(self, answers: Answers) -> None:
        if answers:
            self._call(_resolve, answers)

    def _call(self, function: Callable[[Item], None], item: Item) -> None:
        assert self._loop is not None  # noqa: S101 - the thread begins after `start`
        self._loop.call_soon_threadsafe(function, item)

    def _serve_next(self) -> bool:
        """Run one batch, and keep no reference to its rows; return False at the end."""
        is_idle = not self._queues and not self._shadows
        arrived = self._inbox.take(block=is_idle)
        if arrived is None and is_idle:
            return False
        self._take_in(arrived or [])
        if not self._queues and not self._shadows:
            return True
        limits = self._next_limits()
        plan = plan_next(self._queues, limits=limits, order=self._order, rules=self._rules)
        self._carry_out(self._with_shadows(plan, limits), may_stop=True)
        return True

    def _take_in(self, arrived: Sequence[PendingRow]) -> None:
        """Queue the rows that arrived; drop cancelled rows, fail late ones.

        A row that is withdrawn arrives a second time.
        """
        self._shadows.extend(row for row in arrived if row.is_shadow)
        # A caller may have gone before the withdrawal of its rows arrives.
        self._queues.add(row for row in arrived if not row.is_shadow and not row.is_cancelled)
        self._queues.remove([row for row in arrived if row.is_cancelled and row in self._queues])
        expired = self._queues.remove_expired(now=self._clock())
        self._answer([(row, DeadlineExceededError()) for row in expired])

    def _with_shadows(self, plan: BatchPlan, limits: BatchLimits) -> BatchPlan:
        if not self._shadows:
            return plan
        shadows = [row for row in self._shadows if not row.is_cancelled]
        filled = add_shadows(plan, shadows, limits=limits, rules=self._rules)
        taken = set(map(id, filled.batch))
        self._answer([(row, DeadlineExceededError()) for row in shadows if id(row) not in taken])
        self._shadows = []
        return filled

    def _next_limits(self) -> BatchLimits:
        return self._limits._replace(max_work=self._time_model.next_tokens)

    def _carry_out(self, plan: BatchPlan, *, may_stop: bool) -> None:
        self._order = plan.order
        if not plan.batch:
            return
        self._queues.take([row for row in plan.batch if not row.is_shadow])
        self._batches.append(plan.batch)
        self._answer(self._compute_batch(plan, may_stop=may_stop))
        # Only after success: after a failure, `_run` answers the rows that are still listed here.
        self._batches.pop()
        self._moved_at = self._clock()

    def _compute_batch(self, plan: BatchPlan, *, may_stop: bool) -> Answers:
        # All rows of a batch belong to one backbone.
        compute = self._computes[plan.batch[0].spec.backbone]
        between_layers, preempted = None, _Preempted()
        if may_stop and compute.stops_between_layers:
            between_layers = partial(self._preempt_or_fail, plan, preempted)
        started, begun = self._clock(), self._stopwatch()
        computed = compute_rows(compute, plan.batch, between_layers)
        worked_s = self._stopwatch() - begun
        self._time_model = self._time_model.after(
            work=plan.work,
            asked_tokens=plan.asked_tokens,
            seconds=worked_s - preempted.seconds,
            token_cost=plan.batch[0].spec.token_cost,
        )
        report = report_of(
            plan,
            number=next(self._numbers),
            started_at=started,
            compute_s=self._clock() - started,
            worked_s=worked_s,
        )
        for observe in self._observers:
            observe(report)
        return [
            (row, outcome_of(row, logits, report))
            for row, logits in zip(plan.batch, computed, strict=True)
        ]

    def _preempt_or_fail(self, running: BatchPlan, preempted: _Preempted) -> None:
        try:
            # Rows that arrive during a preemption need not wait for the next layer.
            while self._preempt(running, preempted):
                pass
        except Exception as error:
            # `compute_rows` would blame a task of the preempted batch for any other error.
            raise _as_failure(error) from error

    def _preempt(self, running: BatchPlan, preempted: _Preempted) -> bool:
        # Between two layers, most often nothing has arrived, and no lock is taken.
        arrived = self._inbox.take(block=False) if self._inbox else None
        if not arrived:
            return False
        self._take_in(arrived)
        left, has_preempted = arrived, False
        while left := [row for row in left if row in self._queues]:
            plan = plan_preemption(
                left,
                running=running,
                preempted_by=preempted.charged,
                queues=self._queues,
                limits=self._next_limits(),
                order=self._order,
                rules=self._rules,
            )
            if plan is None:
                break
            begun = self._stopwatch()
            self._carry_out(plan, may_stop=False)
            preempted.seconds += self._stopwatch() - begun
            preempted.charged += plan.charged
            has_preempted = True
            # A batch has one backbone, so the rows of the others need a batch of their own.
            left = [row for row in left if row.spec.backbone != plan.batch[0].spec.backbone]
        return has_preempted


def _resolve(answers: Answers) -> None:
    for row, outcome in answers:
        # A caller that has gone meanwhile has cancelled the future.
        if not row.future.done():
            row.future.set_result(outcome)


def _as_failure(error: BaseException) -> EngineFailedError:
    if isinstance(error, EngineFailedError):
        return error
    failure = EngineFailedError(type(error).__name__)
    failure.__cause__ = error
    return failure
