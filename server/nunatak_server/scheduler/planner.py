"""The planner: from the waiting rows to the next batch, as a pure function.

`plan_batch` takes rows in the order of `FairQueue`: fair between callers, and between the tasks of
a caller. A row brings its siblings along, the rows of the same request for the same text, because
they share a trunk row.

A flow of a batch is heavy if at least as many of its other rows wait as the batch holds. Light rows
do not wait for heavy rows: `plan_next` lets the light rows of a batch go first, in a batch of their
own. `plan_preemption` lets light rows that arrive later run between two layers of a heavy batch.

The wait is bounded: every `OLDEST_EVERY`-th batch begins with the oldest row of all. A row behind
n older rows is computed within `OLDEST_EVERY * (n + 1)` batches; preempting batches do not count.

`add_shadows` fills the free places of a batch with shadow rows, which share its trunk rows. No
shadow row is added while other rows wait, and no shadow row waits for a later batch.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from types import MappingProxyType
from typing import Final

from nunatak_model import Encoding
from nunatak_server.scheduler.batch_time import BatchLimits
from nunatak_server.scheduler.rows import (
    MIN_COST,
    FairQueue,
    Flow,
    PendingRow,
    Queues,
    VirtualTimes,
    flow_of,
    work_added,
)

OLDEST_EVERY: Final = 8
MAX_PREEMPTION: Final = 4.0
"""Most work that preempts one batch, as a multiple of the work of the batch. With a bound, heavy
flows make progress as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOrder:
    virtual_times: VirtualTimes = field(default_factory=VirtualTimes)
    num_in_turn: int = 0
    """Batches since the last one that began with the oldest row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRules:
    weights: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Shares of callers relative to each other; 1 for a caller without an entry."""
    is_trunk_held: Callable[[PendingRow], bool] = lambda _: False
    """Whether the trunk state at the split depth of a row is cached, and so costs nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    batch: tuple[PendingRow, ...]
    num_tokens: int
    num_trunk_rows: int
    num_held_rows: int
    """Rows whose trunk state is cached from an earlier batch."""
    work: float
    """Computed work, in tokens through all layers."""
    asked_tokens: float
    """The tokens that admission counts for the rows: the work without cached trunk states, and at
    least `MIN_COST` for each row."""
    charged: float
    """Charge of the rows, in tokens: at least `MIN_COST` for each."""
    order: TurnOrder
    backlog: frozenset[Flow]
    """Flows with waiting rows that are not in the batch."""


def plan_batch(
    queues: Queues,
    *,
    limits: BatchLimits,
    order: TurnOrder | None = None,
    rules: TurnRules | None = None,
    waiting_elsewhere: Collection[Flow] = (),
) -> BatchPlan:
    """Return the next batch; `queues` stays as it is.

    A row that does not fit ends its flow, so the rows of a flow keep their order. Smaller rows of
    other flows may still take the free places. `order` is as the batch before has left it;
    `waiting_elsewhere` are flows with rows outside `queues`.
    """
    order, rules = order or TurnOrder(), rules or TurnRules()
    turns = FairQueue(queues, virtual_times=order.virtual_times, weights=rules.weights)
    begins_with_oldest = order.num_in_turn + 1 >= OLDEST_EVERY
    draft = Draft(limits=limits, is_trunk_held=rules.is_trunk_held)
    _fill(draft, turns, queues, begins_with_oldest=begins_with_oldest)
    backlog = queues.flows_without(draft.rows).union(waiting_elsewhere)
    after = TurnOrder(
        virtual_times=turns.carry_over(backlog),
        num_in_turn=0 if begins_with_oldest else order.num_in_turn + 1,
    )
    return draft.plan(charged=turns.charged, order=after, backlog=backlog)


def plan_next(
    queues: Queues,
    *,
    limits: BatchLimits,
    order: TurnOrder | None = None,
    rules: TurnRules | None = None,
) -> BatchPlan:
    """Return the next batch, without heavy rows if it also holds light rows.

    A flow is light if it is not heavy, and no batch has taken a part of its rows before: such a
    rest would make one more short batch. The rows of one text stay together, and the oldest row
    keeps its place in every `OLDEST_EVERY`-th batch.
    """
    whole = plan_batch(queues, limits=limits, order=order, rules=rules)
    heavy_flows = _heavy_flows(whole.batch, queues, are_queued=True)
    if not heavy_flows:
        return whole

    def is_light(row: PendingRow) -> bool:
        return flow_of(row) not in heavy_flows and queues.is_new(flow_of(row))

    texts = _by_text(whole.batch)
    light = [rows for rows in texts if all(map(is_light, rows))]
    if not light:
        return whole
    begins_with_oldest = not whole.order.num_in_turn
    oldest = texts[0] if begins_with_oldest and texts[0] not in light else []
    going = [*oldest, *chain.from_iterable(light)]
    return plan_batch(
        Queues(going),
        limits=limits,
        order=order,
        rules=rules,
        waiting_elsewhere=queues.flows_without(going),
    )


def plan_preemption(
    arrived: Sequence[PendingRow],
    *,
    running: BatchPlan,
    preempted_by: float,
    queues: Queues,
    limits: BatchLimits,
    order: TurnOrder,
    rules: TurnRules,
) -> BatchPlan | None:
    """Plan a batch that runs before the remaining layers of a batch; None if no row may go.

    Only a batch whose flows are all heavy is preempted. A row goes if all of these hold:

    - No other row of its flow runs or waits.
    - No heavy flow of its caller has a higher priority.
    - Its flow, and its caller if that is another one, are not ahead by the work of the batch.
    - All that preempts the batch is at most `MAX_PREEMPTION` times the work of the batch.

    The rows of one text of one request go together or not at all. `arrived` are the rows of
    `queues` since the last call or the begin of the batch; `preempted_by` is the charge of earlier
    ones.
    """
    heavy_flows = _heavy_flows(running.batch, queues)
    if not heavy_flows.issuperset(map(flow_of, running.batch)):
        return None
    times, charged = order.virtual_times, running.charged
    of_caller = charged / max(rules.weights.get(caller, 1.0) for caller, _, _ in heavy_flows)
    kept = {*map(flow_of, running.batch), *queues.flows_without(arrived)}

    def may_go(flow: Flow) -> bool:
        caller, priority, _ = flow
        own_ranks = [it[1].rank for it in heavy_flows if it[0] == caller]
        if flow in kept or times.flows.get(flow, 0.0) >= charged:
            return False
        if own_ranks:
            return min(own_ranks) >= priority.rank
        return times.callers.get(caller, 0.0) < of_caller

    room, going = MAX_PREEMPTION * running.charged - preempted_by, list[PendingRow]()
    for rows in _by_text(arrived):
        work = sum(max(MIN_COST, work_added(row.spec)) for row in rows)
        if work <= room and all(map(may_go, map(flow_of, rows))):
            going.extend(rows)
            room -= work
        else:
            kept.update(map(flow_of, rows))
    if not going:
        return None
    plan = plan_batch(
        Queues(going),
        limits=limits,
        # The turn of the oldest row counts whole batches, so a preempting batch leaves it as is.
        order=replace(order, num_in_turn=0),
        rules=rules,
        waiting_elsewhere=queues.flows_without(going),
    )
    return replace(plan, order=replace(plan.order, num_in_turn=order.num_in_turn))


def _heavy_flows(
    batch: Sequence[PendingRow], queues: Queues, *, are_queued: bool = False
) -> frozenset[Flow]:
    taken = Counter(map(flow_of, batch))
    waiting = {flow: len(queues.of_flow(flow)) for flow in taken if flow in queues.flows}
    return frozenset(
        flow for flow, count in waiting.items() if count - are_queued * taken[flow] >= len(batch)
    )


def _by_text(rows: Iterable[PendingRow]) -> list[list[PendingRow]]:
    texts = defaultdict[Hashable, list[PendingRow]](list)
    for row in rows:
        texts[row.spec.group].append(row)
    return list(texts.values())


@dataclass(slots=True, kw_only=True)
class Draft:
    limits: BatchLimits
    is_trunk_held: Callable[[PendingRow], bool]
    seen: set[int] = field(default_factory=set[int])
    """The `id` of each row of the batch."""
    rows: list[PendingRow] = field(default_factory=list[PendingRow])
    trunk_shares: dict[Encoding, float] = field(default_factory=dict[Encoding, float])
    """Share of the layers that each trunk row passes, by encoding."""
    num_held_rows: int = 0
    num_tokens: int = 0
    work: float = 0.0
    asked_tokens: float = 0.0

    @property
    def is_full(self) -> bool:
        limits = self.limits
        return (
            self.has_no_place
            or self.num_tokens >= limits.max_tokens
            or self.work >= self._work_of(limits.max_work)
        )

    @property
    def has_no_place(self) -> bool:
        return len(self.rows) >= self.limits.max_rows

    def take(self, row: PendingRow, *, max_work: float) -> float | None:
        """Add the row if it fits, and return its work. The first row may exceed the work bound.

        The first row decides the backbone of the batch.
        """
        if len(self.rows) >= self.limits.max_rows:
            return None
        spec = row.spec
        if self.rows and spec.backbone != self.rows[0].spec.backbone:
            return None
        is_held = spec.trunk_tokens > 0 and self.is_trunk_held(row)
        paid = self.trunk_shares.get(spec.encoding)
        asked_work = work_added(spec, paid_share=paid or 0.0)
        work = work_added(spec, paid_share=spec.trunk_share) if is_held else asked_work
        trunk_tokens = spec.trunk_tokens if paid is None and not is_held else 0
        num_tokens = self.num_tokens + spec.branch_tokens + trunk_tokens
        has_room = not self.rows or self.work + work <= self._work_of(max_work)
        if num_tokens > self.limits.max_tokens or not has_room:
            return None
        self.rows.append(row)
        self.seen.add(id(row))
        self.num_held_rows += is_held
        self.num_tokens = num_tokens
        self.work += work
        self.asked_tokens += max(MIN_COST, asked_work)
        if spec.trunk_tokens and not is_held:
            self.trunk_shares[spec.encoding] = max(paid or 0.0, spec.trunk_share)
        return work

    def _work_of(self, tokens: float) -> float:
        return tokens * self.rows[0].spec.token_cost if self.rows else inf

    def plan(self, *, charged: float, order: TurnOrder, backlog: frozenset[Flow]) -> BatchPlan:
        return BatchPlan(
            batch=tuple(self.rows),
            num_tokens=self.num_tokens,
            num_trunk_rows=len(self.trunk_shares),
            num_held_rows=self.num_held_rows,
            work=self.work,
            asked_tokens=self.asked_tokens,
            charged=charged,
            order=order,
            backlog=backlog,
        )


def _fill(draft: Draft, turns: FairQueue, queues: Queues, *, begins_with_oldest: bool) -> None:
    row = next(iter(queues), None) if begins_with_oldest else turns.next_row(draft.seen)
    while row is not None:
        work = draft.take(row, max_work=draft.limits.max_work)
        if work is None:
            turns.end_flow(row)
        else:
            turns.charge(row, work)
            for sibling in queues.of_text(row.spec.group):
                if draft.has_no_place:
                    break
                # The rows of one text stay together, whatever their work.
                if id(sibling) not in draft.seen:
                    shared = draft.take(sibling, max_work=inf)
                    if shared is not None:
                        turns.charge(sibling, shared)
        row = None if draft.is_full else turns.next_row(draft.seen)


def add_shadows(
    plan: BatchPlan, shadows: Iterable[PendingRow], *, limits: BatchLimits, rules: TurnRules
) -> BatchPlan:
    if not plan.batch or plan.backlog:
        return plan
    draft = Draft(limits=limits, is_trunk_held=rules.is_trunk_held)
    for row in plan.batch:
        draft.take(row, max_work=inf)
    for row in shadows:
        draft.take(row, max_work=limits.max_work)
    return draft.plan(charged=plan.charged, order=plan.order, backlog=plan.backlog)
