"""The inbox: hands rows over from the event loop to the engine thread.

The engine: one thread, one device, one loop.

    event loop thread                        engine thread
    -----------------                        -------------
    submit(rows) ---- inbox ---------------> take all that arrived
                                             plan (pure)
                                             forward of the mixed batch
    future.set_result <- call_soon_threadsafe - answers, one call per batch

While a batch runs, what arrives gathers for the next one: there is no artificial waiting. Light
rows go before the rest of a batch of heavy_flows, between two layers, where the device allows that.
Every row is answered exactly once. A failure the engine cannot attribute to a task stops it for
good: `on_fatal` is called, and all rows are answered.
"""

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Generic, TypeVar

from nunatak_server.engine.outcomes import (
    BatchObserver,
    Compute,
    compute_rows,
    outcome_of,
    report_of,
)
from nunatak_server.errors import DeadlineExceededError, EngineFailedError, NotReadyError
from nunatak_server.scheduler.batch_time import BatchTimeModel
from nunatak_server.scheduler.fairness import Flow, Queues, Usage, flow_of
from nunatak_server.scheduler.planner import (
    BatchLimits,
    BatchPlan,
    TurnOrder,
    TurnRules,
    add_shadows,
    plan_batch,
    stale_rows,
)
from nunatak_server.scheduler.preemption import (
    Running,
    begin_batch,
    may_preempt_later,
    plan_before,
    plan_light_first,
    plan_preemption,
)
from nunatak_server.scheduler.rows import PendingRow, RowOutcome

Item = TypeVar("Item")


class Inbox(Generic[Item]):
    """A thread-safe, unbounded hand-over; admission bounds what is put in."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._items: list[Item] = []
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, items: Iterable[Item]) -> bool:
        """Hand items over; return False, taking none, once the inbox is closed."""
        with self._changed:
            if self._is_closed:
                return False
            self._items.extend(items)
            self._changed.notify()
            return True

    def take(self, *, block: bool) -> list[Item] | None:
        """Take everything there is, oldest first; None once the inbox is closed and empty.

        With `block`, wait until there is something to take or the inbox is closed.
        """
        with self._changed:
            if block:
                self._changed.wait_for(lambda: self._items or self._is_closed)
            if not self._items and self._is_closed:
                return None
            items, self._items = self._items, []
            return items

    def close(self) -> None:
        """Refuse new items; what is inside can still be taken."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


Answers = list[tuple[PendingRow, RowOutcome]]

JOIN_S: Final = 5.0
"""For the last batches, once nobody waits for them: a process must end though its device hangs."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Progress:
    """A batch that runs, and what has preempted it."""

    running: Running[PendingRow]
    candidates: Sequence[PendingRow] = ()
    """Rows that came since it began, and may still preempt it."""
    preemption_s: float = 0.0
    """By the stopwatch."""


class Engine:
    """Owns the compute thread; called on the event loop thread, but for what says otherwise."""

    def __init__(  # noqa: PLR0913 - what it computes with, and whom it tells
        self,
        *,
        compute: Compute,
        limits: BatchLimits,
        observer: BatchObserver,
        on_fatal: Callable[[EngineFailedError], None],
        rules: TurnRules[PendingRow] | None = None,
        time_model: BatchTimeModel | None = None,
        clock: Callable[[], float] = time.monotonic,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        """`stopwatch` times batches for the time_model, and is read on the thread that computes them."""
        self._compute = compute
        self._limits = limits
        self._rules = rules or TurnRules()
        self._order = TurnOrder()
        self.time_model = time_model or BatchTimeModel()
        """How long batches take; replaced after each, and so good to read from any thread."""
        self._observer = observer
        self._on_fatal = on_fatal
        self._clock = clock
        self._stopwatch = stopwatch
        self._inbox: Inbox[PendingRow] = Inbox()
        self._queues: Queues[PendingRow] = Queues()
        self._shadows: list[PendingRow] = []
        """Those that wait for the next batch, and for no other."""
        self._batches: list[Sequence[PendingRow]] = []
        """Those that run: each but the first between two layers of the one before."""
        self._numbers = itertools.count(1)
        self._moved_at = clock()
        """When a batch ended, or a row came and found none."""
        self._thread: threading.Thread | None = None

    @property
    def num_rows(self) -> int:
        """Rows that are computed or wait for it; about, for it may be asked from any thread."""
        return len(self._inbox) + len(self._queues) + sum(map(len, tuple(self._batches)))

    @property
    def stalled_s(self) -> float:
        """Seconds for which no batch has ended while there were rows; asked from any thread."""
        return self._clock() - self._moved_at if self.num_rows else 0.0

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
        if not self.num_rows:
            self._moved_at = self._clock()
        if not self._inbox.put(rows):
            raise NotReadyError("the engine has stopped")

    async def aclose(self) -> None:
        """Answer everything that was submitted, then end the thread; one that hangs is left."""
        self._inbox.close()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, JOIN_S)
            if self._thread.is_alive():
                logger.warning("the device has not ended its last batch within %g s", JOIN_S)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while self._serve_next(loop):
                pass
        except BaseException as error:
            logger.critical("the engine has failed", exc_info=error)
            self._inbox.close()
            arrived = self._inbox.take(block=False) or []
            # Told first: whoever is answered must find the process no longer ready.
            loop.call_soon_threadsafe(self._on_fatal, _as_failure(error))
            stopped = NotReadyError("the engine has failed")
            running = itertools.chain.from_iterable(self._batches)
            rows = [*running, *self._queues, *self._shadows, *arrived]
            _answer(loop, [(row, stopped) for row in rows])

    def _serve_next(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Run one batch; its rows are let go on return, for they hold versions in memory."""
        is_idle = not self._queues and not self._shadows
        arrived = self._inbox.take(block=is_idle)
        if arrived is None and is_idle:
            return False
        self._take_in(arrived or ())
        self._drop_stale(loop, self._queues)
        limits = self._limits_for(self._queues.flows)
        plan = self._plan_next(limits)
        progress = _Progress(running=begin_batch(plan))
        self._carry_out(loop, self._with_shadows(loop, plan, limits), progress)
        return True

    def _take_in(self, arrived: Sequence[PendingRow]) -> None:
        self._queues.add(row for row in arrived if not row.is_shadow)
        self._shadows.extend(row for row in arrived if row.is_shadow)

    def _drop_stale(self, loop: asyncio.AbstractEventLoop, rows: Iterable[PendingRow]) -> None:
        """Answer those of the rows whose deadline has passed, and forget those nobody waits for."""
        stale = stale_rows(rows, now=self._clock())
        self._queues.remove((*stale.expired, *stale.cancelled))
        _answer(loop, [(row, DeadlineExceededError()) for row in stale.expired])

    def _with_shadows(
        self,
        loop: asyncio.AbstractEventLoop,
        plan: BatchPlan[PendingRow],
        limits: BatchLimits,
    ) -> BatchPlan[PendingRow]:
        """Add the shadows for which there is room, and drop the others."""
        if not self._shadows:
            return plan
        shadows = [row for row in self._shadows if not row.is_cancelled]
        filled = add_shadows(plan, shadows, limits=limits, rules=self._rules)
        taken = set(map(id, filled.batch))
        _answer(loop, [(row, DeadlineExceededError()) for row in shadows if id(row) not in taken])
        self._shadows = []
        return filled

    def _plan_next(self, limits: BatchLimits) -> BatchPlan[PendingRow]:
        plan_next, order = plan_light_first, self._order.at(self._clock())
        if not self._compute.stops_between_layers:
            # Where nobody can preempt, nobody asks who was given little.
            plan_next, order = plan_batch, replace(self._order, usage=Usage())
        return plan_next(self._queues, limits=limits, order=order, rules=self._rules)

    def _limits_for(self, waiting: Iterable[Flow]) -> BatchLimits:
        num_tasks = len({task for _, _, task in waiting})
        return replace(self._limits, max_work=self.time_model.next_tokens(num_tasks))

    def _carry_out(
        self,
        loop: asyncio.AbstractEventLoop,
        plan: BatchPlan[PendingRow],
        progress: _Progress | None,
    ) -> None:
        """Compute the batch of a plan, and answer it; no `progress`: nothing preempts."""
        self._order = plan.order
        if not plan.batch:
            return
        self._queues.remove(row for row in plan.batch if not row.is_shadow)
        self._batches.append(plan.batch)
        _answer(loop, self._compute_batch(loop, plan, progress))
        # Not if that failed: then whoever answers all that is left must find them.
        self._batches.pop()
        self._moved_at = self._clock()

    def _compute_batch(
        self,
        loop: asyncio.AbstractEventLoop,
        plan: BatchPlan[PendingRow],
        progress: _Progress | None,
    ) -> Answers:
        between_layers = None
        if progress is not None and self._compute.stops_between_layers:
            between_layers = partial(self._preempt_or_fail, loop, progress)
        started, begun = self._clock(), self._stopwatch()
        if progress is not None:
            # Not left to the first layer: a batch whose states are all held runs none.
            self._run_first(loop, plan.going_first, progress)
        computed = compute_rows(self._compute, plan.batch, between_layers)
        preemption_s = 0.0 if progress is None else progress.preemption_s
        seconds = self._stopwatch() - begun - preemption_s
        self.time_model = self.time_model.after(
            work=plan.work,
            asked_work=plan.asked_work,
            seconds=seconds,
            num_tasks=_num_tasks(plan.batch),
            num_rows=len(plan.batch),
        )
        report = report_of(
            plan,
            number=next(self._numbers),
            started_at=started,
            compute_s=self._clock() - started,
            has_preempted=progress is None,
        )
        self._observer.observe_batch(report)
        return [
            (row, outcome_of(row, logits, report))
            for row, logits in zip(plan.batch, computed, strict=True)
        ]

    def _preempt_or_fail(self, loop: asyncio.AbstractEventLoop, progress: _Progress) -> None:
        try:
            # Who comes while others preempt need not wait for a layer.
            while self._preempt(loop, progress):
                pass
        except Exception as error:
            # It must not pass for a failure of a task of the batch that runs.
            raise _as_failure(error) from error

    def _preempt(self, loop: asyncio.AbstractEventLoop, progress: _Progress) -> bool:
        """Run what goes now before the layers of a batch that are left; False if nothing does."""
        arrived = self._inbox.take(block=False) or []
        self._take_in(arrived)
        came = (row for row in arrived if not row.is_shadow)
        candidates = self._worth_computing(loop, [*progress.candidates, *came])
        progress.candidates = candidates
        if not candidates:
            return False
        progress.running = progress.running.with_arrivals(self._queues)
        plan = plan_preemption(
            candidates,
            running=progress.running,
            queues=self._queues,
            limits=self._limits_for(map(flow_of, candidates)),
            order=self._order,
            rules=self._rules,
        )
        if plan is not None:
            self._run_before(loop, plan, progress)
        progress.candidates = may_preempt_later(
            candidates, running=progress.running, queues=self._queues
        )
        return plan is not None

    def _run_first(
        self,
        loop: asyncio.AbstractEventLoop,
        going_first: Sequence[PendingRow],
        progress: _Progress,
    ) -> None:
        """Run the rows that a batch was planned without, for they go first."""
        while rows := self._worth_computing(loop, going_first):
            plan = plan_before(
                rows,
                queues=self._queues,
                limits=self._limits_for(map(flow_of, rows)),
                order=self._order,
                rules=self._rules,
            )
            self._run_before(loop, plan, progress)

    def _run_before(
        self,
        loop: asyncio.AbstractEventLoop,
        plan: BatchPlan[PendingRow],
        progress: _Progress,
    ) -> None:
        """Run a batch before the rest of one that has begun."""
        begun = self._stopwatch()
        self._carry_out(loop, plan, None)
        progress.preemption_s += self._stopwatch() - begun
        progress.running = progress.running.after(plan)

    def _worth_computing(
        self, loop: asyncio.AbstractEventLoop, rows: Sequence[PendingRow]
    ) -> list[PendingRow]:
        waiting = [row for row in rows if row in self._queues]
        self._drop_stale(loop, waiting)
        return [row for row in waiting if row in self._queues]


def _num_tasks(rows: Sequence[PendingRow]) -> int:
    return len({(row.task, row.version) for row in rows})


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
