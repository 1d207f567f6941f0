"""Queues: the rows that wait, by whom they are of and by text, kept from batch to batch.

So planning a batch looks at what the batch takes and at who waits, and not at every row that waits.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator, KeysView, Sequence
from itertools import count
from typing import Generic, Protocol, TypeVar

from nunatak_server.batching.senders import Priority


class Queued(Protocol):
    """What a row is queued by."""

    @property
    def caller(self) -> str:
        """Who asks."""
        ...

    @property
    def task(self) -> str:
        """The name that gets a turn: one task, whatever its version."""
        ...

    @property
    def priority(self) -> Priority:
        """How the row ranks among those of its caller."""
        ...

    @property
    def group(self) -> Hashable:
        """Equal for the rows of one request that read the same text."""
        ...


QueuedRow = TypeVar("QueuedRow", bound=Queued)
Key = TypeVar("Key", bound=Hashable)
Flow = tuple[str, Priority, str]
"""A caller's rows of one priority for one task: they keep their order."""


def flow_of(row: Queued) -> Flow:
    """Return the flow that a row belongs to."""
    return row.caller, row.priority, row.task


class Queues(Generic[QueuedRow]):
    """Rows in the order in which they came: all of them, those of each flow and of each text."""

    def __init__(self, rows: Iterable[QueuedRow] = ()) -> None:
        """Begin with these rows, oldest first."""
        self._arrivals = count()
        self._number_of: dict[int, int] = {}
        """By the `id` of a row: the how manieth it was."""
        self._rows: dict[int, QueuedRow] = {}
        self._flows: dict[Flow, dict[int, QueuedRow]] = {}
        self._texts: dict[Hashable, dict[int, QueuedRow]] = {}
        self.add(rows)

    def __len__(self) -> int:
        """Return how many rows wait."""
        return len(self._rows)

    def __contains__(self, row: QueuedRow) -> bool:
        """Return whether this very row waits."""
        return id(row) in self._number_of

    def __iter__(self) -> Iterator[QueuedRow]:
        """Return the rows, oldest first."""
        return iter(self._rows.values())

    @property
    def flows(self) -> KeysView[Flow]:
        """The flows that have rows here, in no order."""
        return self._flows.keys()

    def add(self, rows: Iterable[QueuedRow]) -> None:
        """Queue rows, none of which is here, behind all others."""
        for row in rows:
            number = next(self._arrivals)
            self._number_of[id(row)] = number
            self._rows[number] = row
            self._flows.setdefault(flow_of(row), {})[number] = row
            self._texts.setdefault(row.group, {})[number] = row

    def remove(self, rows: Iterable[QueuedRow]) -> None:
        """Let go of rows that are here."""
        for row in rows:
            number = self._number_of.pop(id(row))
            del self._rows[number]
            _remove(self._flows, flow_of(row), number)
            _remove(self._texts, row.group, number)

    def of_flow(self, flow: Flow) -> Collection[QueuedRow]:
        """Return the rows of a flow, oldest first."""
        return self._flows[flow].values()

    def of_text(self, group: Hashable) -> Collection[QueuedRow]:
        """Return the rows of one request that read the same text, oldest first."""
        return self._texts[group].values()

    def age_rank(self, flow: Flow) -> int:
        """Return a number that is the smaller the older the oldest row of a flow is."""
        return next(iter(self._flows[flow]))

    def flows_beside(self, rows: Sequence[QueuedRow]) -> frozenset[Flow]:
        """Return the flows that have rows here besides these, which are here."""
        numbers: dict[Flow, int] = {}
        for row in rows:
            flow = flow_of(row)
            numbers[flow] = numbers.get(flow, 0) + 1
        return frozenset(
            flow for flow, queue in self._flows.items() if len(queue) > numbers.get(flow, 0)
        )


def _remove(queues: dict[Key, dict[int, QueuedRow]], key: Key, number: int) -> None:
    queue = queues[key]
    del queue[number]
    if not queue:
        del queues[key]
