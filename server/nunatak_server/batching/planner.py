"""The planner: a pure function from what waits to the next batch.

Rows are taken in rounds: each round gives every task one turn, tasks in the order of their oldest
row. A row that is taken brings its siblings along (the same text for other tasks of the same
request), because they share its trunk row. The oldest row of all always goes first into the empty
batch, so every row is served after finitely many batches, whatever else arrives.
"""

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """What the planner needs to know of a row that waits to be computed."""

    @property
    def task(self) -> str:
        """The name that gets a turn: one task, whatever its version."""
        ...

    @property
    def group(self) -> Hashable:
        """Equal for the rows of one request that read the same text."""
        ...

    @property
    def trunk_key(self) -> Hashable:
        """Equal for rows that may share one trunk row."""
        ...

    @property
    def trunk_tokens(self) -> int:
        """Tokens of its trunk row, paid once per batch and key."""
        ...

    @property
    def branch_tokens(self) -> int:
        """Tokens of its own branch row."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan(Generic[WaitingRow]):
    """Every waiting row, in exactly one of four places."""

    batch: tuple[WaitingRow, ...]
    expired: tuple[WaitingRow, ...]
    cancelled: tuple[WaitingRow, ...]
    waiting: tuple[WaitingRow, ...]
    num_tokens: int
    num_trunk_rows: int


def plan_batch(
    pending: Sequence[WaitingRow], *, limits: BatchLimits, now: float
) -> BatchPlan[WaitingRow]:
    """Split `pending`, oldest first, into the next batch and the rest.

    A row that does not fit ends the turns of its task, so rows of one task keep their order, but
    smaller rows of other tasks may still use the room that is left.
    """
    expired: list[WaitingRow] = []
    cancelled: list[WaitingRow] = []
    live: list[WaitingRow] = []
    for row in pending:
        if row.is_cancelled:
            cancelled.append(row)
        elif row.deadline <= now:
            expired.append(row)
        else:
            live.append(row)
    draft = _fill(live, limits)
    return BatchPlan(
        batch=tuple(draft.rows),
        expired=tuple(expired),
        cancelled=tuple(cancelled),
        waiting=tuple(row for row in live if id(row) not in draft.taken),
        num_tokens=draft.num_tokens,
        num_trunk_rows=len(draft.trunk_keys),
    )


@dataclass(slots=True, kw_only=True)
class _Draft(Generic[WaitingRow]):
    """A batch while it is being filled."""

    limits: BatchLimits
    rows: list[WaitingRow] = field(default_factory=list[WaitingRow])
    taken: set[int] = field(default_factory=set[int])
    trunk_keys: set[Hashable] = field(default_factory=set[Hashable])
    num_tokens: int = 0

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= self.limits.max_rows or self.num_tokens >= self.limits.max_tokens

    def take(self, row: WaitingRow) -> bool:
        """Add the row if it fits; return whether it is in the batch."""
        if id(row) in self.taken:
            return True
        needs_trunk = row.trunk_tokens > 0 and row.trunk_key not in self.trunk_keys
        cost = row.branch_tokens + (row.trunk_tokens if needs_trunk else 0)
        if self.is_full or self.num_tokens + cost > self.limits.max_tokens:
            return False
        self.rows.append(row)
        self.taken.add(id(row))
        self.num_tokens += cost
        if needs_trunk:
            self.trunk_keys.add(row.trunk_key)
        return True


def _fill(live: Iterable[WaitingRow], limits: BatchLimits) -> _Draft[WaitingRow]:
    turns: dict[str, deque[WaitingRow]] = defaultdict(deque)
    siblings: dict[Hashable, list[WaitingRow]] = defaultdict(list)
    for row in live:
        turns[row.task].append(row)
        siblings[row.group].append(row)
    draft = _Draft[WaitingRow](limits=limits)
    queues = list(turns.values())
    while queues and not draft.is_full:
        queues = [queue for queue in queues if _take_turn(queue, siblings, draft)]
    return draft


def _take_turn(
    queue: deque[WaitingRow],
    siblings: dict[Hashable, list[WaitingRow]],
    draft: _Draft[WaitingRow],
) -> bool:
    """Take the next row of one task and its siblings; return whether the task has turns left."""
    while queue and id(queue[0]) in draft.taken:
        queue.popleft()
    if not queue:
        return False
    row = queue.popleft()
    if not draft.take(row):
        return False
    for sibling in siblings[row.group]:
        draft.take(sibling)
    return True
