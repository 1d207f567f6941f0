"""A simulated engine: the real planner and time model on a simulated clock, one batch at a time."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from doubles.waiting import WaitingRow, waiting_row
from nunatak_server.scheduler.batch_time import BatchTimeModel
from nunatak_server.scheduler.fairness import Queues
from nunatak_server.scheduler.planner import (
    BatchLimits,
    BatchPlan,
    TurnOrder,
    TurnRules,
    plan_batch,
)
from nunatak_server.scheduler.preemption import (
    Running,
    begin_batch,
    may_preempt_later,
    plan_before,
    plan_light_first,
    plan_preemption,
)

LIMITS = BatchLimits(max_tokens=4096, max_rows=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The time of a batch."""

    fixed_s: float
    per_token_s: float
    per_task_s: float = 0.0
    num_layers: int = 1
    """Layers; batches can be preempted between two of them."""

    def seconds(self, work: float, num_tasks: int = 1) -> float:
        """Seconds of a batch of `num_tasks` tasks. `work` counts tokens through all layers."""
        return self.fixed_s + num_tasks * self.per_task_s + work * self.per_token_s

    def seconds_of(self, plan: BatchPlan[WaitingRow]) -> float:
        """Seconds of the batch of a plan."""
        return self.seconds(plan.work, _num_tasks(plan))


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


class Simulation:
    """The waiting rows, the simulated time, and the time of each answer."""

    def __init__(self, machine: Machine, rules: TurnRules[WaitingRow]) -> None:
        self.machine = machine
        self.rules = rules
        self.now = 0.0
        self.queue = list[tuple[float, int, WaitingRow]]()
        self.pending: Queues[WaitingRow] = Queues()
        self.order = TurnOrder()
        self.time_model = _calibrated(machine)
        self.answered_at = dict[int, float]()

    @property
    def limits(self) -> BatchLimits:
        num_waiting = len({task for _, _, task in self.pending.flows})
        return replace(LIMITS, max_work=self.time_model.next_tokens(num_waiting))

    def arrivals(self) -> list[WaitingRow]:
        """Queue every row that has arrived by now."""
        found = list[WaitingRow]()
        while self.queue and self.queue[0][0] <= self.now:
            found.append(heapq.heappop(self.queue)[2])
        return found

    def run_batch(self) -> None:
        """Run one batch, and preempting batches between its layers."""
        num_layers, order = self.machine.num_layers, self.order.at(self.now)
        plan_next = plan_light_first if num_layers > 1 else plan_batch
        plan = plan_next(self.pending, limits=self.limits, order=order, rules=self.rules)
        running = begin_batch(plan)
        self.take(plan)
        seconds, candidates = self.machine.seconds_of(plan), list[WaitingRow]()
        going_first = plan.going_first
        while going_first := [row for row in going_first if row in self.pending]:
            first = plan_before(
                going_first,
                queues=self.pending,
                limits=self.limits,
                order=self.order,
                rules=self.rules,
            )
            running = self.run_before(running, first)
        for _ in range(num_layers):
            if num_layers > 1:
                running, candidates = self.preempt(running, candidates)
            self.now += seconds / num_layers
        self.answer(plan)

    def take(self, plan: BatchPlan[WaitingRow]) -> None:
        """Let the batch of a plan begin."""
        self.pending.remove(plan.batch)
        self.order = plan.order

    def preempt(
        self, running: Running[WaitingRow], candidates: Sequence[WaitingRow]
    ) -> tuple[Running[WaitingRow], list[WaitingRow]]:
        """Run the rows that preempt the running batch; also returns the rows that stay behind."""
        behind = list(candidates)
        while True:
            arrived = self.arrivals()
            self.pending.add(arrived)
            behind += arrived
            running = running.with_arrivals(self.pending)
            plan = plan_preemption(
                behind, running=running, queues=self.pending,
                limits=self.limits, order=self.order, rules=self.rules,
            )  # fmt: skip
            if plan is not None:
                running = self.run_before(running, plan)
            behind = may_preempt_later(behind, running=running, queues=self.pending)
            if plan is None:
                return running, behind

    def run_before(
        self, running: Running[WaitingRow], plan: BatchPlan[WaitingRow]
    ) -> Running[WaitingRow]:
        """Run a batch before the rest of one that has begun."""
        self.take(plan)
        self.now += self.machine.seconds_of(plan)
        self.answer(plan)
        return running.after(plan)

    def answer(self, plan: BatchPlan[WaitingRow]) -> None:
        """Record the rows of a finished batch, and its time."""
        self.time_model = self.time_model.after(
            work=plan.work,
            asked_work=plan.asked_work,
            seconds=self.machine.seconds_of(plan),
            num_tasks=_num_tasks(plan),
            num_rows=len(plan.batch),
        )
        self.answered_at.update({row.group: self.now for row in plan.batch})


def simulate(
    machine: Machine,
    arrivals: Sequence[Arrival],
    *,
    rules: TurnRules[WaitingRow] | None = None,
    until_s: float = 1e9,
) -> dict[int, float]:
    """Return the seconds from arrival to answer, for rows answered by `until_s`, by group."""
    simulation = Simulation(machine, rules or TurnRules())
    simulation.queue = [(it.at_s, it.row.group, it.row) for it in arrivals]
    heapq.heapify(simulation.queue)
    came = {row.group: at_s for at_s, _, row in simulation.queue}
    while (simulation.queue or simulation.pending) and simulation.now < until_s:
        if not simulation.pending:
            simulation.now = max(simulation.now, simulation.queue[0][0])
        simulation.pending.add(simulation.arrivals())
        simulation.run_batch()
    return {group: at_s - came[group] for group, at_s in simulation.answered_at.items()}


def _num_tasks(plan: BatchPlan[WaitingRow]) -> int:
    return len({row.task for row in plan.batch})


def _calibrated(machine: Machine) -> BatchTimeModel:
    time_model = BatchTimeModel(max_tokens=LIMITS.max_tokens, max_rows=LIMITS.max_rows)
    for work, num_tasks in ((16, 1), (128, 1), (128, 8), (16, 1), (96, 3)):
        time_model = time_model.after(
            work=work,
            asked_work=work,
            seconds=machine.seconds(work, num_tasks),
            num_tasks=num_tasks,
            num_rows=work // 16,
        )
    return time_model
