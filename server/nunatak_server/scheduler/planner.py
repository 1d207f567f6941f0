"""The planner: from what waits to the next batch; it changes nothing.

Rows are taken by turns (`turns.py`): fair between callers, and between the tasks of a caller. A row
that is taken brings its siblings along (the same text for other tasks of the same request),
because they share its trunk row. Where many rows of many tasks wait, each turn may have up to a
quarter of the batch, so that the batch holds few tasks.

Bounded wait: the first turn of every `OLDEST_EVERY`-th batch is that of the oldest row of all,
whoever sent it at whatever priority. So a row that waits behind n older ones is computed within
`OLDEST_EVERY * (n + 1)` batches, whatever arrives later; those that preempt one do not count.

Shadow rows: computed in the room that a batch has left, or never.

A shadow row comes with the row it shadows and is worth computing in the next batch only: that is
where the two share a trunk row. As soon as a row that somebody waits for does not fit, no shadow
row is taken; none of them waits beyond the next batch. The shadow of a row that preempts a batch
comes with the one after, on a trunk row of its own, or never.
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
"""Of the work of a batch, that one turn may have. More makes batches of fewer tasks, which take
less time, and a flow that has had its turn then waits for more batches."""


class Waiting(Queued, Extent, Protocol):
    """What the planner needs to know of a row that waits to be computed."""

    @property
    def trunk_key(self) -> Hashable:
        """Equal for rows that may share one trunk row."""
        ...

    @property
    def deadline(self) -> float:
        """The clock reading from which the row is no longer worth computing."""
        ...

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        ...


WaitingRow = TypeVar("WaitingRow", bound=Waiting)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What one forward pass may hold; every single row must fit alone."""

    max_tokens: int
    max_rows: int
    max_work: float = inf
    """In tokens through all layers. Only the rows of one text may exceed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOrder:
    """What batches leave to the next one about whose turn it is."""

    virtual_times: VirtualTimes = field(default_factory=VirtualTimes)
    usage: Usage = field(default_factory=Usage)
    num_in_turn: int = 0
    """Batches since one began with the oldest row of all."""

    def at(self, now: float) -> "TurnOrder":
        """Return it at a clock reading: usage decays."""
        return replace(self, usage=self.usage.at(now))


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRules(Generic[WaitingRow]):
    """What turns depend on, besides the rows."""

    weights: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Shares of callers relative to each other; 1 for those that are not named."""
    is_trunk_held: Callable[[WaitingRow], bool] = lambda _: False
    """Whether the trunk state that a row starts from is there already, and costs nothing."""
    turn_share: float = TURN_SHARE
    """Of a batch, that one turn may have where many rows of many tasks wait; 0 is one row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan(Generic[WaitingRow]):
    """The rows of the next batch, what they take, and what is left."""

    batch: tuple[WaitingRow, ...]
    num_tokens: int
    num_trunk_rows: int
    num_held_rows: int
    """Rows that start from a trunk state which an earlier batch computed."""
    work: float
    """Tokens through all layers that are computed."""
    asked_work: float
    """The same, if no trunk state were held."""
    charged: float
    """What its rows are charged, in tokens: no row costs less than one."""
    order: TurnOrder
    backlog: frozenset[Flow]
    """The flows that have rows which neither are in the batch nor go first."""
    going_first: tuple[WaitingRow, ...] = ()
    """Rows that wait, and go before the batch, which has begun then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleRows(Generic[WaitingRow]):
    """Rows that are not worth computing."""

    expired: tuple[WaitingRow, ...]
    """Those whose caller still waits, to be told so."""
    cancelled: tuple[WaitingRow, ...]


def stale_rows(rows: Iterable[WaitingRow], *, now: float) -> StaleRows[WaitingRow]:
    """Return the rows that must be planned no more: they would hold up others of their flow."""
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
    apart: Sequence[WaitingRow] = (),
    beside: Collection[Flow] = (),
) -> BatchPlan[WaitingRow]:
    """Take the next batch out of what waits in `queues`.

    A row that does not fit ends the turns of its flow, so rows of one caller, task and priority
    keep their order, but smaller rows of others may still use the room that is left. Rows of
    `apart` wait in any case, and so do others of the flows of `beside`, which are elsewhere.
    """
    order, rules = order or TurnOrder(), rules or TurnRules()
    longest_turn = _longest_turn(queues, limits, rules.turn_share)
    turns = FairQueue(
        queues, virtual_times=order.virtual_times, weights=rules.weights, longest_turn=longest_turn
    )
    begins_with_oldest = order.num_in_turn + 1 >= OLDEST_EVERY
    draft = Draft[WaitingRow](
        limits=limits, is_trunk_held=rules.is_trunk_held, seen=set(map(id, apart))
    )
    _fill(draft, turns, queues, begins_with_oldest=begins_with_oldest)
    backlog = queues.flows_beside((*draft.rows, *apart))
    return BatchPlan(
        batch=tuple(draft.rows),
        num_tokens=draft.num_tokens,
        num_trunk_rows=len(draft.trunk_shares),
        num_held_rows=draft.num_held_rows,
        work=draft.work,
        asked_work=draft.asked_work,
        charged=sum(turns.given.values()),
        order=TurnOrder(
            virtual_times=turns.carry_over({*backlog, *map(flow_of, apart), *beside}),
            usage=order.usage.plus(turns.given),
            num_in_turn=0 if begins_with_oldest else order.num_in_turn + 1,
        ),
        backlog=backlog,
    )


def work_by_flow(rows: Iterable[WaitingRow], *, rules: TurnRules[WaitingRow]) -> dict[Flow, float]:
    """Return what a batch of these rows alone would give to each flow, in tokens.

    Those of a trunk row through the layers that it passes are counted once, and not if it is held.
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
    """Return the work of a long turn; 0 where a batch has turns for all tasks with many rows."""
    heads = [
        next(iter(queues.of_flow(flow)))
        for flow in queues.flows
        if len(queues.of_flow(flow)) >= MANY_ROWS
    ]
    if len({row.task for row in heads}) * turn_share <= 1:
        return 0.0
    per_row = sum(map(work_added, heads)) / len(heads)
    # The tokens of a row count twice in a batch, on the trunk and on its branch.
    return turn_share * min(limits.max_work, limits.max_tokens / 2, limits.max_rows * per_row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a row adds to a batch."""

    tokens: int
    work: float
    asked_work: float


@dataclass(slots=True, kw_only=True)
class Draft(Generic[WaitingRow]):
    """A batch while it is being filled."""

    limits: BatchLimits
    is_trunk_held: Callable[[WaitingRow], bool]
    seen: set[int]
    """The `id` of each row that is in it, or must not be."""
    rows: list[WaitingRow] = field(default_factory=list[WaitingRow])
    trunk_shares: dict[Hashable, float] = field(default_factory=dict[Hashable, float])
    """How far up the trunk rows go that are paid for."""
    num_held_rows: int = 0
    num_tokens: int = 0
    work: float = 0.0
    asked_work: float = 0.0

    @property
    def is_full(self) -> bool:
        """Whether no row finds room any more."""
        limits = self.limits
        return (
            len(self.rows) >= limits.max_rows
            or self.num_tokens >= limits.max_tokens
            or self.work >= limits.max_work
        )

    def take(self, row: WaitingRow, *, max_work: float) -> Cost | None:
        """Add the row if it fits, and return what it costs; the first row always fits."""
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
                # The rows of one text stay together, however long they take.
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
    """Fill the room that a batch has left with shadow rows, in their order, while they fit.

    `limits` and `rules` are those that the batch was planned by.
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
