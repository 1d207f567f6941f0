"""Rows, one for each pair of a text and a task version, and which row the next batch takes next.

The caller and the priority of a row decide the row's turn in a batch. The work of a row is its cost
in tokens through all layers. Rows of one text pay for its trunk once.

- `Queues` holds the waiting rows by flow, by text and by deadline, from batch to batch. A batch
  therefore costs time for the rows that it takes or that are too late, and for the flows that wait,
  not for every waiting row.
- `FairQueue` picks the rows of one batch by virtual time, first between callers, then between the
  flows of a caller. This is start-time fair queueing (Goyal et al. 1996) on two levels, and counts
  tokens as in Sheng et al. 2024 (arXiv:2401.00588, algorithm 2). A flow that returns starts level
  with the least served one, so no flow saves up service.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from types import MappingProxyType
from typing import Final, TypeVar

from nunatak_contract.errors import NunatakError
from nunatak_model import Branch, Encoding
from nunatak_server.errors import TaskUnhealthyError

ANONYMOUS: Final = "anonymous"
"""The caller of requests without a named caller."""


class Priority(StrEnum):
    """The rank of a request among its caller's requests; other callers lose nothing by it."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @property
    def rank(self) -> int:
        return _RANKS[self]


MIN_COST: Final = 1.0
"""Tokens that a row counts at least: a row that costs no work still takes time and memory."""

LOGITS_PER_TOKEN: Final = 32
"""Number of logits that become outputs in the time in which a CPU computes one token."""

_RANKS: Final = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAnswer:
    """The logits of one row, token after token for some heads, and the times of the row."""

    logits: list[float]
    queue_s: float
    compute_s: float
    batch_rows: int
    """Rows of the row's caller in its batch, without shadows."""
    load_s: float = 0.0
    """Time to load the row's version; 0 if the version was in memory."""
    started_at: float = 0.0
    """The start of the row's batch, by the engine's clock."""
    batch: int = 0


RowOutcome = RowAnswer | NunatakError
"""Failures are values, so a row whose request has gone leaves no unread exception."""


def backbone_answer(outcome: RowOutcome) -> RowAnswer:
    """Return a row's answer, or raise a failure that names the backbone: no task can roll back."""
    match outcome:
        case RowAnswer():
            return outcome
        case TaskUnhealthyError(reason=reason):
            raise NunatakError("backbone_unhealthy", reason=reason)
        case _:
            raise outcome


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowSpec:
    """The part of a row that is fixed before its version is in memory."""

    encoding: Encoding
    """The tokens that the row reads. Rows of a batch with equal encodings share their trunk row."""
    group: int
    """Rows of one text of one request have equal groups."""
    trunk_tokens: int
    """Tokens of the row's trunk row, paid once per batch and encoding."""
    branch_tokens: int
    trunk_share: float
    """Share of the layers that the trunk row passes; the branch row passes the others."""
    backbone: str
    token_cost: float
    """Cost of a token through all layers, as a share of the largest backbone's."""
    caller: str = ANONYMOUS
    priority: Priority = Priority.NORMAL


def _new_future() -> asyncio.Future[RowOutcome]:
    return asyncio.get_running_loop().create_future()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PendingRow:
    """A row that waits; its future is resolved once, on the event loop, by the engine."""

    spec: RowSpec = field(kw_only=False)
    task: str
    version: int
    branch: Branch
    deadline: float
    """The clock reading after which the answer is useless."""
    submitted_at: float
    load_s: float = 0.0
    is_shadow: bool = False
    """Whether the row is a shadow row, which only fills the free places of a batch."""
    future: asyncio.Future[RowOutcome] = field(default_factory=_new_future)

    @property
    def is_cancelled(self) -> bool:
        """Whether the caller has gone; may be read from any thread."""
        return self.future.cancelled()


def work_added(row: RowSpec, *, paid_share: float = 0.0) -> float:
    """Return the work of a row, in tokens through all layers of the largest backbone.

    The work has two parts: the branch row, and the layers of the trunk row above `paid_share`.
    Other rows pay for the share `paid_share` of the layers.
    """
    above = row.trunk_tokens * max(0.0, row.trunk_share - paid_share)
    return row.token_cost * (above + row.branch_tokens * (1.0 - row.trunk_share))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBackbone:
    digest: str
    num_layers: int
    token_cost: float


def row_spec(
    encoding: Encoding,
    split_depth: int | None,
    *,
    backbone: RowBackbone,
    group: int,
    caller: str,
    priority: Priority,
) -> RowSpec:
    """Return the row of a version that splits at `split_depth`; at 0 it reads no trunk."""
    return RowSpec(
        encoding=encoding,
        group=group,
        trunk_tokens=encoding.num_tokens if split_depth else 0,
        branch_tokens=encoding.num_tokens if split_depth != backbone.num_layers else 0,
        trunk_share=(split_depth or 0) / backbone.num_layers,
        backbone=backbone.digest,
        token_cost=backbone.token_cost,
        caller=caller,
        priority=priority,
    )


class RowTokens:
    """The tokens of a request's rows, by task: at least `MIN_COST` for each row.

    The first task of a text pays for the trunk up to the task's split depth. A task with a higher
    split depth pays for the layers above.
    """

    def __init__(self) -> None:
        self.least: dict[str, float] = {}
        """`MIN_COST` for each row."""
        self.extra: dict[str, float] = {}
        """What the work of each row is above `MIN_COST`, and the work to make outputs."""
        self._paid_shares: dict[int, float] = {}

    def add(self, task: str, row: RowSpec) -> None:
        paid = self._paid_shares.get(row.group, 0.0)
        extra = max(0.0, work_added(row, paid_share=paid) - MIN_COST)
        self._paid_shares[row.group] = max(paid, row.trunk_share)
        self.least[task] = self.least.get(task, 0.0) + MIN_COST
        self.extra[task] = self.extra.get(task, 0.0) + extra

    def add_outputs(self, task: str, num_logits: int) -> None:
        self.extra[task] = self.extra.get(task, 0.0) + num_logits / LOGITS_PER_TOKEN


Flow = tuple[str, Priority, str]
"""Caller, priority and task. The rows of a flow keep their order."""
Rank = tuple[str, Priority]
"""Caller and priority."""
QueueKey = TypeVar("QueueKey", bound=Hashable)

MAX_PAST_DEADLINES: Final = 64
"""Deadlines without rows that a heap may hold beside one for each deadline with rows."""


def flow_of(row: PendingRow) -> Flow:
    return row.spec.caller, row.spec.priority, row.task


class Queues:
    """Waiting rows in the order of arrival: all rows, and those of each flow, text and deadline."""

    def __init__(self, rows: Iterable[PendingRow] = ()) -> None:
        self._arrivals = count()
        self._number_of: dict[int, int] = {}
        """The arrival number of a row, by the `id` of the row."""
        self._rows: dict[int, PendingRow] = {}
        self._flows: dict[Flow, dict[int, PendingRow]] = {}
        self._texts: dict[Hashable, dict[int, PendingRow]] = {}
        self._deadlines: dict[float, dict[int, PendingRow]] = {}
        self._next_deadlines: list[float] = []
        """A heap; the rows of some of these deadlines may have left."""
        self._cut: set[Flow] = set()
        """Flows of which a batch has taken a part of the rows."""
        self.add(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, row: PendingRow) -> bool:
        return id(row) in self._number_of

    def __iter__(self) -> Iterator[PendingRow]:
        return iter(self._rows.values())

    @property
    def flows(self) -> KeysView[Flow]:
        return self._flows.keys()

    def add(self, rows: Iterable[PendingRow]) -> None:
        """Queue rows behind all others; none of the rows may be queued already."""
        for row in rows:
            number = next(self._arrivals)
            self._number_of[id(row)] = number
            self._rows[number] = row
            self._flows.setdefault(flow_of(row), {})[number] = row
            self._texts.setdefault(row.spec.group, {})[number] = row
            deadline = row.deadline
            if deadline not in self._deadlines:
                self._deadlines[deadline] = {}
                heappush(self._next_deadlines, deadline)
            self._deadlines[deadline][number] = row
        if len(self._next_deadlines) > 2 * len(self._deadlines) + MAX_PAST_DEADLINES:
            self._next_deadlines = sorted(self._deadlines)

    def remove_expired(self, *, now: float) -> list[PendingRow]:
        expired, heap = list[PendingRow](), self._next_deadlines
        while heap and (heap[0] <= now or heap[0] not in self._deadlines):
            # The heap may hold a deadline twice.
            late = tuple(self._deadlines.get(heappop(heap), {}).values())
            self.remove(late)
            expired += late
        return expired

    def remove(self, rows: Iterable[PendingRow]) -> None:
        for row in rows:
            number = self._number_of.pop(id(row))
            del self._rows[number]
            flow = flow_of(row)
            _remove(self._flows, flow, number)
            _remove(self._texts, row.spec.group, number)
            _remove(self._deadlines, row.deadline, number)
            if flow not in self._flows:
                self._cut.discard(flow)

    def take(self, rows: Collection[PendingRow]) -> None:
        self.remove(rows)
        self._cut.update(self._flows.keys() & set(map(flow_of, rows)))

    def is_new(self, flow: Flow) -> bool:
        return flow not in self._cut

    def of_flow(self, flow: Flow) -> Collection[PendingRow]:
        return self._flows[flow].values()

    def of_text(self, group: Hashable) -> Collection[PendingRow]:
        return self._texts[group].values()

    def age_rank(self, flow: Flow) -> int:
        return next(iter(self._flows[flow]))

    def flows_without(self, rows: Sequence[PendingRow]) -> frozenset[Flow]:
        numbers: dict[Flow, int] = {}
        for row in rows:
            flow = flow_of(row)
            numbers[flow] = numbers.get(flow, 0) + 1
        return frozenset(
            flow for flow, queue in self._flows.items() if len(queue) > numbers.get(flow, 0)
        )


def _remove(queues: dict[QueueKey, dict[int, PendingRow]], key: QueueKey, number: int) -> None:
    queue = queues[key]
    del queue[number]
    if not queue:
        del queues[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualTimes:
    """Service of callers and of flows, above the least served caller and flow that wait.

    In tokens, divided by the weight of the caller. A caller or flow without an entry has 0.
    """

    callers: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    flows: Mapping[Flow, float] = field(default_factory=lambda: MappingProxyType({}))


_Standing = tuple[int, float, int, Flow]
"""Rank of the priority, virtual time, age of the oldest row, flow."""


class FairQueue:
    """The order in which one batch takes rows."""

    def __init__(
        self, queues: Queues, *, virtual_times: VirtualTimes, weights: Mapping[str, float]
    ) -> None:
        self._caller_times = defaultdict[str, float](float, virtual_times.callers)
        self._flow_times = defaultdict[Flow, float](float, virtual_times.flows)
        self._weights = weights
        self.charged = 0.0
        """The service of all flows in this batch, in tokens through all layers."""
        self._queues = queues
        self._rows: dict[Flow, Iterator[PendingRow]] = {}
        """The unseen rows of each flow that was looked at."""
        self._ended: set[Flow] = set()
        """Flows that have no rows left, or may give no more rows to this batch."""
        self._flows = defaultdict[str, list[_Standing]](list)
        """A heap for each caller."""
        for flow in queues.flows:
            standing = (flow[1].rank, self._flow_times[flow], queues.age_rank(flow), flow)
            self._flows[flow[0]].append(standing)
        for standings in self._flows.values():
            heapify(standings)
        self._callers = [
            (self._caller_times[caller], min(age for _, _, age, _ in standings), caller)
            for caller, standings in self._flows.items()
        ]
        heapify(self._callers)

    def next_row(self, taken: Collection[int]) -> PendingRow | None:
        """Return the next row, and count the row as seen; None once all rows were seen.

        The row comes from the caller with the least virtual time, from its highest priority, and
        there from the flow with the least virtual time. The age of the oldest row breaks ties.
        Rows whose `id` is in `taken` are skipped.
        """
        while self._callers:
            time, age, caller = self._callers[0]
            flow = self._next_flow(self._flows[caller])
            if flow is None:
                heappop(self._callers)
            # Virtual times only grow, so an entry that is out of date is too far in front.
            elif time < self._caller_times[caller]:
                heapreplace(self._callers, (self._caller_times[caller], age, caller))
            else:
                row = self._row_of(flow, taken)
                if row is not None:
                    return row
                self._ended.add(flow)
        return None

    def end_flow(self, row: PendingRow) -> None:
        """Skip the flow of a row that does not fit the batch, so that the flow keeps its order."""
        self._ended.add(flow_of(row))

    def charge(self, row: PendingRow, cost: float) -> None:
        cost, flow = max(cost, MIN_COST), flow_of(row)
        caller = row.spec.caller
        self._caller_times[caller] += cost / self._weights.get(caller, 1.0)
        self._flow_times[flow] += cost
        self.charged += cost

    def carry_over(self, waiting: Iterable[Flow]) -> VirtualTimes:
        """Return the virtual times after the batch, above the least among the waiting flows.

        A caller that waits no more is forgotten once the others have caught up with it. A flow is
        forgotten once no flow of its caller and priority waits, or once those have caught up.
        """
        levels: dict[Rank, float] = {}
        callers = set[str]()
        for flow in waiting:
            time = self._flow_times[flow]
            levels[flow[:2]] = min(time, levels.get(flow[:2], time))
            callers.add(flow[0])
        level = min((self._caller_times[caller] for caller in callers), default=None)
        return VirtualTimes(
            callers={}
            if level is None
            else {it: time - level for it, time in self._caller_times.items() if time > level},
            flows={
                flow: time - levels[flow[:2]]
                for flow, time in self._flow_times.items()
                if flow[:2] in levels and time > levels[flow[:2]]
            },
        )

    def _next_flow(self, flows: list[_Standing]) -> Flow | None:
        while flows:
            rank, time, age, flow = flows[0]
            if flow in self._ended:
                heappop(flows)
            elif time < self._flow_times[flow]:
                heapreplace(flows, (rank, self._flow_times[flow], age, flow))
            else:
                return flow
        return None

    def _row_of(self, flow: Flow, taken: Collection[int]) -> PendingRow | None:
        if flow in self._ended:
            return None
        if flow not in self._rows:
            self._rows[flow] = iter(self._queues.of_flow(flow))
        return next((row for row in self._rows[flow] if id(row) not in taken), None)
