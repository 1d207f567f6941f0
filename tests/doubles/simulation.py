"""A simulated engine: the real planner and pace on a simulated clock, one batch at a time."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from doubles.waiting import WaitingRow, waiting_row
from nunatak_server.batching.pace import Pace
from nunatak_server.batching.planner import BatchLimits, TurnOrder, TurnRules, plan_batch

LIMITS = BatchLimits(max_tokens=4096, max_rows=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """How long a batch takes."""

    fixed_s: float
    per_token_s: float

    def seconds(self, work: float) -> float:
        """Of a batch of so many tokens through all layers."""
        return self.fixed_s + work * self.per_token_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A row and the second at which it arrives."""

    at_s: float
    row: WaitingRow


def rows_at(
    times: Iterable[float], task: str, *, first_group: int, tokens: int = 16, caller: str = "any"
) -> list[Arrival]:
    """Return rows of one task at these seconds."""
    return [
        Arrival(at_s=at_s, row=waiting_row(task, first_group + n, tokens=tokens, caller=caller))
        for n, at_s in enumerate(times)
    ]


def simulate(
    machine: Machine,
    arrivals: Sequence[Arrival],
    *,
    rules: TurnRules[WaitingRow] | None = None,
    until_s: float = 1e9,
) -> dict[int, float]:
    """Return the seconds from arrival to answer of what is answered by `until_s`, by group."""
    queue = [(it.at_s, it.row.group, it.row) for it in arrivals]
    heapq.heapify(queue)
    came = {row.group: at_s for at_s, _, row in queue}
    pending, order, now, found = list[WaitingRow](), TurnOrder(), 0.0, dict[int, float]()
    pace = _calibrated(machine)
    while (queue or pending) and now < until_s:
        if not pending:
            now = max(now, queue[0][0])
        while queue and queue[0][0] <= now:
            pending.append(heapq.heappop(queue)[2])
        limits = replace(LIMITS, max_work=pace.efficient_tokens)
        plan = plan_batch(pending, limits=limits, now=0, order=order, rules=rules)
        seconds = machine.seconds(plan.work)
        now += seconds
        pace = pace.after(work=plan.work, asked_work=plan.asked_work, seconds=seconds)
        pending, order = list(plan.waiting), plan.order
        found.update({row.group: now - came[row.group] for row in plan.batch})
    return found


def _calibrated(machine: Machine) -> Pace:
    pace = Pace()
    for work in (8, 128, 12, 96):
        pace = pace.after(work=work, asked_work=work, seconds=machine.seconds(work))
    return pace
