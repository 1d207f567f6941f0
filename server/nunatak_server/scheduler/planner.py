"""The planner: from the waiting rows to the next batch, as a pure function.

`plan_batch` takes rows in the order of `FairQueue`: fair between callers, and between the tasks of
a caller. A row brings its siblings along, the rows of the same request for the same text, because
they share a trunk row. Where many rows of many tasks wait, a turn has up to a quarter of the batch,
so that the batch holds few tasks.

The wait is bounded: every `OLDEST_EVERY`-th batch begins with the oldest row of all. A row behind
n older rows is computed within `OLDEST_EVERY * (n + 1)` batches; preempting batches do not count.

`add_shadows` fills the free places of a batch with shadow rows, which share its trunk rows. No
shadow row is added while other rows wait, and no shadow row waits for a later batch.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from sys import maxsize
from types import MappingProxyType
from typing import Final, Generic, Protocol, TypeVar

from nunatak_server.scheduler.fairness import (
    MANY_ROWS,
    MIN_COST,
    FairQueue,
    Flow,
    Queued,
    Queues,
    Usage,
    VirtualTimes,
    flow_of,
)
from nunatak_server.scheduler.rows import Extent, work_added

OLDEST_EVERY: Final = 8
TURN_SHARE: Final = 1 / 4
"""Most work of one turn, as a share of the batch. A larger share makes batches of fewer tasks,
which take less time, but a flow then waits more batches for its next turn."""


class Waiting(Queued, Extent, Protocol):
    """The attributes of a waiting row that the planner reads."""

    @property
    def trunk_key(self) -> Hashable:
        """A key that is equal for rows that can share one trunk row."""
        ...

    @property
    def deadline(self) -> float:
        """The clock reading after which the answer is useless."""
        ...

    @property
    def is_cancelled(self) -> bool:
        """Whether the caller has gone."""
        ...


WaitingRow = TypeVar("WaitingRow", bound=Waiting)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Bounds of one forward pass. Every row must fit an empty batch."""

    max_tokens: int
    max_rows: int
    max_work: float = inf
    """In tokens through all layers. Only a first row, or the siblings of a row, may exceed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOrder:
    """The state of fair queueing between two batches."""

    virtual_times: VirtualTimes = field(default_factory=VirtualTimes)
    usage: Usage = field(default_factory=Usage)
    num_in_turn: int = 0
    """Batches since the last one that began with the oldest row."""

    def at(self, now: float) -> "TurnOrder":
        """Return the state at a clock reading, with usage decayed."""
        return replace(self, usage=self.usage.at(now))


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRules(Generic[WaitingRow]):
    """The fixed rules of fair queueing."""

    weights: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Shares of callers relative to each other; 1 for a caller without an entry."""
    is_trunk_held: Callable[[WaitingRow], bool] = lambda _: False
    """Whether the trunk state at the split depth of a row is cached, and so costs nothing."""
    turn_share: float = TURN_SHARE
    """Most work of a long turn, as a share of the batch; with 0 all turns are of one row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan(Generic[WaitingRow]):
    """The rows of the next batch, their cost, and the state that they leave."""

    batch: tuple[WaitingRow, ...]
    num_tokens: int
    num_trunk_rows: int
    num_held_rows: int
    """Rows whose trunk state is cached from an earlier batch."""
    work: float
    """Computed work, in tokens through all layers."""
    asked_work: float
    """The work without cached trunk states."""
    charged: float
    """Charge of the rows, in tokens: at least `MIN_COST` for each."""
    order: TurnOrder
    backlog: frozenset[Flow]
    """Flows with waiting rows that are neither in the batch nor in `going_first`."""
    going_first: tuple[WaitingRow, ...] = ()
    """Waiting rows that run before the first layer of the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleRows(Generic[WaitingRow]):
    """Rows whose answers are not needed any more."""

    expired: tuple[WaitingRow, ...]
    """Rows after their deadline; the caller still waits for an error."""
    cancelled: tuple[WaitingRow, ...]


def stale_rows(rows: Iterable[WaitingRow], *, now: float) -> StaleRows[WaitingRow]:
    """Return the rows to drop before planning, because they would delay the rest of their flow."""
    expired, cancelled = list[WaitingRow](), list[WaitingRow]()
    for row in rows:
        if row.is_cancelled:
            cancelled.append(row)
        elif row.deadline <= now:
            expired.append(row)
    return StaleRows(expired=tuple(expired), cancelled=tuple(cancelled))


def plan_batch(
    queues: Queues[WaitingRow],
    *,
    limits: BatchLimits,
    order: TurnOrder | None = None,
    rules: TurnRules[WaitingRow] | None = None,
    left_out: Sequence[WaitingRow] = (),
    waiting_elsewhere: Collection[Flow] = (),
) -> BatchPlan[WaitingRow]:
    """Return the next batch; `queues` stays as it is.

    A row that does not fit ends the turns of its flow, so the rows of a flow keep their order.
    Smaller rows of other flows may still take the free places.

    Args:
        queues: the waiting rows.
        limits: bounds of the batch.
        order: as the batch before has left it.
        rules: weights, and which trunk states are cached.
        left_out: rows of `queues` that the batch must not take.
        waiting_elsewhere: flows with waiting rows outside `queues`.
    """
    order, rules = order or TurnOrder(), rules or TurnRules()
    longest_turn = _longest_turn(queues, limits, rules.turn_share)
    turns = FairQueue(
        queues, virtual_times=order.virtual_times, weights=rules.weights, longest_turn=longest_turn
    )
    begins_with_oldest = order.num_in_turn + 1 >= OLDEST_EVERY
    draft = Draft[WaitingRow](
        limits=limits, is_trunk_held=rules.is_trunk_held, seen=set(map(id, left_out))
    )
    _fill(draft, turns, queues, begins_with_oldest=begins_with_oldest)
    backlog = queues.flows_without((*draft.rows, *left_out))
    return BatchPlan(
        batch=tuple(draft.rows),
        num_tokens=draft.num_tokens,
        num_trunk_rows=len(draft.trunk_shares),
        num_held_rows=draft.num_held_rows,
        work=draft.work,
        asked_work=draft.asked_work,
        charged=sum(turns.given.values()),
        order=TurnOrder(
            virtual_times=turns.carry_over({*backlog, *map(flow_of, left_out), *waiting_elsewhere}),
            usage=order.usage.plus(turns.given),
            num_in_turn=0 if begins_with_oldest else order.num_in_turn + 1,
        ),
        backlog=backlog,
    )


def work_by_flow(rows: Iterable[WaitingRow], *, rules: TurnRules[WaitingRow]) -> dict[Flow, float]:
    """Return the service of each flow in a batch of these rows alone, in tokens.

    A shared trunk row counts once, and a cached one not at all.
    """
    limits = BatchLimits(max_tokens=maxsize, max_rows=maxsize)
    draft = Draft[WaitingRow](limits=limits, is_trunk_held=rules.is_trunk_held, seen=set())
    given = dict[Flow, float]()
    for row in rows:
        cost = draft.take(row, max_work=inf)
        if cost is not None:
            given[flow_of(row)] = given.get(flow_of(row), 0.0) + max(MIN_COST, cost.work)
    return given


def _longest_turn(queues: Queues[WaitingRow], limits: BatchLimits, turn_share: float) -> float:
    """Return the work of a long turn; 0 where one batch holds long turns of all tasks."""
    heads = [
        next(iter(queues.of_flow(flow)))
        for flow in queues.flows
        if len(queues.of_flow(flow)) >= MANY_ROWS
    ]
    if len({row.task for row in heads}) * turn_share <= 1:
        return 0.0
    per_row = sum(map(work_added, heads)) / len(heads)
    # The batch counts the tokens of a row twice, as trunk row and as branch row.
    return turn_share * min(limits.max_work, limits.max_tokens / 2, limits.max_rows * per_row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost that a row adds to a batch."""

    tokens: int
    work: float
    asked_work: float


@dataclass(slots=True, kw_only=True)
class Draft(Generic[WaitingRow]):
    """A batch while the planner fills it."""

    limits: BatchLimits
    is_trunk_held: Callable[[WaitingRow], bool]
    seen: set[int]
    """The `id` of each row that is in the batch, or must not be."""
    rows: list[WaitingRow] = field(default_factory=list[WaitingRow])
    trunk_shares: dict[Hashable, float] = field(default_factory=dict[Hashable, float])
    """Share of the layers that each trunk row passes, by trunk key."""
    num_held_rows: int = 0
    num_tokens: int = 0
    work: float = 0.0
    asked_work: float = 0.0

    @property
    def is_full(self) -> bool:
        """Whether no further row fits."""
        limits = self.limits
        return (
            len(self.rows) >= limits.max_rows
            or self.num_tokens >= limits.max_tokens
            or self.work >= limits.max_work
        )

    def take(self, row: WaitingRow, *, max_work: float) -> Cost | None:
        """Add the row if it fits, and return its cost. The first row may exceed the work bound."""
        if len(self.rows) >= self.limits.max_rows:
            return None
        is_held = row.trunk_tokens > 0 and self.is_trunk_held(row)
        cost = self._cost(row, is_held=is_held)
        has_room = self.work + cost.work <= max_work or not self.rows
        if self.num_tokens + cost.tokens > self.limits.max_tokens or not has_room:
            return None
        self.rows.append(row)
        self.seen.add(id(row))
        self.num_held_rows += is_held
        self.num_tokens += cost.tokens
        self.work += cost.work
        self.asked_work += cost.asked_work
        if row.trunk_tokens and not is_held:
            paid = self.trunk_shares.get(row.trunk_key, 0.0)
            self.trunk_shares[row.trunk_key] = max(paid, row.trunk_share)
        return cost

    def _cost(self, row: WaitingRow, *, is_held: bool) -> Cost:
        paid = self.trunk_shares.get(row.trunk_key)
        asked_work = work_added(row, paid_share=paid or 0.0)
        work = work_added(row, paid_share=row.trunk_share) if is_held else asked_work
        trunk_tokens = row.trunk_tokens if paid is None and not is_held else 0
        tokens = row.branch_tokens + trunk_tokens
        return Cost(tokens=tokens, work=work, asked_work=asked_work)


def _fill(
    draft: Draft[WaitingRow],
    turns: FairQueue[WaitingRow],
    queues: Queues[WaitingRow],
    *,
    begins_with_oldest: bool,
) -> None:
    row = None
    if begins_with_oldest:
        row = next((row for row in queues if id(row) not in draft.seen), None)
    row = row or turns.next_row(draft.seen)
    while row is not None:
        cost = draft.take(row, max_work=draft.limits.max_work)
        if cost is None:
            turns.end_turns(row)
        else:
            turns.charge(row, cost.work)
            for sibling in queues.of_text(row.group):
                # The rows of one text stay together, whatever their work.
                if id(sibling) not in draft.seen:
                    shared = draft.take(sibling, max_work=inf)
                    if shared is not None:
                        turns.charge(sibling, shared.work)
        row = None if draft.is_full else turns.next_row(draft.seen)


def add_shadows(
    plan: BatchPlan[WaitingRow],
    shadows: Iterable[WaitingRow],
    *,
    limits: BatchLimits,
    rules: TurnRules[WaitingRow],
) -> BatchPlan[WaitingRow]:
    """Fill the free places of a batch with shadow rows, in their order.

    `limits` and `rules` must be the ones of the plan.
    """
    if not plan.batch or plan.backlog or plan.going_first:
        return plan
    draft = Draft[WaitingRow](limits=limits, is_trunk_held=rules.is_trunk_held, seen=set())
    for row in plan.batch:
        draft.take(row, max_work=inf)
    for row in shadows:
        draft.take(row, max_work=limits.max_work)
    return replace(
        plan,
        batch=tuple(draft.rows),
        num_tokens=draft.num_tokens,
        num_trunk_rows=len(draft.trunk_shares),
        num_held_rows=draft.num_held_rows,
        work=draft.work,
        asked_work=draft.asked_work,
    )
