"""Laws of the waits between flows, on a simulated clock with the real planner and time model."""

import heapq
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import pytest

from doubles.waiting import changed, waiting_row
from nunatak_server.scheduler.batch_time import FIXED_SHARE, BatchLimits, BatchTimeModel
from nunatak_server.scheduler.planner import (
    BatchPlan,
    TurnOrder,
    TurnRules,
    plan_next,
    plan_preemption,
)
from nunatak_server.scheduler.rows import PendingRow, Queues

LIMITS = BatchLimits(max_tokens=4096, max_rows=64)
TOKENS = 16
NOISY, LIGHT = 0, 10**6
"""First groups of the noisy task and of the light ones."""
SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    fixed_s: float
    per_token_s: float
    num_layers: int = 1
    """Layers; batches can be preempted between two of them."""

    def seconds(self, work: float) -> float:
        return self.fixed_s + work * self.per_token_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    at_s: float
    row: PendingRow


def rows_at(
    times: Iterable[float], task: str, *, first_group: int, tokens: int = 16, caller: str = "any"
) -> list[Arrival]:
    return [
        Arrival(at_s=at_s, row=waiting_row(task, first_group + n, tokens=tokens, caller=caller))
        for n, at_s in enumerate(times)
    ]


class Simulation:
    """The waiting rows, the simulated time, and the time of each answer."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.now = 0.0
        self.queue = list[tuple[float, int, PendingRow]]()
        self.pending = Queues()
        self.order = TurnOrder()
        self.time_model = _calibrated(machine)
        self.answered_at = dict[int, float]()

    @property
    def limits(self) -> BatchLimits:
        return LIMITS._replace(max_work=self.time_model.next_tokens)

    def arrivals(self) -> list[PendingRow]:
        found = list[PendingRow]()
        while self.queue and self.queue[0][0] <= self.now:
            found.append(heapq.heappop(self.queue)[2])
        return found

    def run_batch(self) -> None:
        """Run one batch, and preempting batches between its layers."""
        plan = plan_next(self.pending, limits=self.limits, order=self.order)
        self.take(plan)
        seconds, preempted_by = self.machine.seconds(plan.work), 0.0
        for _ in range(self.machine.num_layers):
            if self.machine.num_layers > 1:
                preempted_by += self.preempt(plan, preempted_by)
            self.now += seconds / self.machine.num_layers
        self.answer(plan)

    def take(self, plan: BatchPlan) -> None:
        self.pending.take(plan.batch)
        self.order = plan.order

    def preempt(self, running: BatchPlan, preempted_by: float) -> float:
        """Run what goes before the rest of a batch, and return the charge of it."""
        charged = 0.0
        while arrived := self.arrivals():
            self.pending.add(arrived)
            plan = plan_preemption(
                arrived, running=running, preempted_by=preempted_by + charged, queues=self.pending,
                limits=self.limits, order=self.order, rules=TurnRules(),
            )  # fmt: skip
            if plan is not None:
                self.take(plan)
                self.now += self.machine.seconds(plan.work)
                self.answer(plan)
                charged += plan.charged
        return charged

    def answer(self, plan: BatchPlan) -> None:
        seconds = self.machine.seconds(plan.work)
        self.time_model = self.time_model.after(
            work=plan.work, asked_tokens=plan.asked_tokens, seconds=seconds
        )
        self.answered_at.update({row.spec.group: self.now for row in plan.batch})


def simulate(
    machine: Machine, arrivals: Sequence[Arrival], *, until_s: float = 1e9
) -> dict[int, float]:
    """Return the seconds from arrival to answer, for rows answered by `until_s`, by group."""
    simulation = Simulation(machine)
    simulation.queue = [(it.at_s, it.row.spec.group, it.row) for it in arrivals]
    heapq.heapify(simulation.queue)
    came = {row.spec.group: at_s for at_s, _, row in simulation.queue}
    while (simulation.queue or simulation.pending) and simulation.now < until_s:
        if not simulation.pending:
            simulation.now = max(simulation.now, simulation.queue[0][0])
        simulation.pending.add(simulation.arrivals())
        simulation.run_batch()
    return {group: at_s - came[group] for group, at_s in simulation.answered_at.items()}


def _calibrated(machine: Machine) -> BatchTimeModel:
    time_model = BatchTimeModel()
    for work in (16, 128, 128, 16, 96):
        seconds = machine.seconds(work)
        time_model = time_model.after(work=work, asked_tokens=work, seconds=seconds)
    return time_model


PROCESSOR = Machine(fixed_s=0.002, per_token_s=0.005 / TOKENS)
"""As MiniLM on one core: five milliseconds for a short text."""


def poisson(rate: float, seed: int, seconds: float = SECONDS) -> list[float]:
    draw, times, at_s = random.Random(seed), list[float](), 0.0
    while (at_s := at_s + draw.expovariate(rate)) < seconds:
        times.append(at_s)
    return times


def many_tasks(
    name: str, count: int, rate: float, *, seed: int = 0, caller: str = "any"
) -> list[Arrival]:
    return [
        arrival
        for index in range(count)
        for arrival in rows_at(
            poisson(rate, seed + index),
            f"{name}-{index}",
            first_group=LIGHT * (index + 1),
            caller=caller.format(index),
        )
    ]


def light_tasks(total_rate: float, seed: int) -> list[Arrival]:
    return many_tasks("light", 9, total_rate / 9, seed=seed)


def p99(waits: dict[int, float]) -> float:
    light = sorted(wait for group, wait in waits.items() if group >= LIGHT)
    return light[int(0.99 * len(light))]


def capacity(machine: Machine) -> float:
    """Rows per second, each in a batch of its own."""
    return 1 / machine.seconds(TOKENS)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_a_noisy_task_adds_two_short_batches_at_most_to_the_wait_of_light_ones(
    noise: float, seed: int
) -> None:
    rate = capacity(PROCESSOR)
    light = light_tasks(0.3 * rate, 100 * seed)
    noisy = rows_at(poisson(noise * rate, seed), "noisy", first_group=NOISY)

    alone = p99(simulate(PROCESSOR, light))
    beside = p99(simulate(PROCESSOR, [*light, *noisy], until_s=SECONDS))

    assert beside <= alone + 2 * longest_batch(PROCESSOR)


def longest_batch(machine: Machine) -> float:
    efficient = (1 / FIXED_SHARE - 1) * machine.fixed_s / machine.per_token_s
    return machine.seconds(min(64 * TOKENS, efficient + TOKENS))


LAYERED = Machine(fixed_s=0.006, per_token_s=0.005 / TOKENS, num_layers=6)
"""Batches of a dozen short texts are efficient there, and can be preempted between layers."""


@pytest.mark.parametrize("seed", range(2))
def test_between_layers_light_rows_go_before_a_heavy_flow_at_a_small_price(seed: int) -> None:
    whole = replace(LAYERED, num_layers=1)
    rate = capacity(LAYERED)
    light = light_tasks(0.3 * rate, 100 * seed)
    noisy = rows_at(poisson(3 * rate, seed), "noisy", first_group=NOISY)

    beside, without = (
        simulate(machine, [*light, *noisy], until_s=SECONDS) for machine in (LAYERED, whole)
    )

    assert median_of_light(beside) <= 0.5 * median_of_light(without)
    assert p99(beside) <= p99(without)
    assert num_noisy(beside) >= 0.8 * num_noisy(without)


@pytest.mark.parametrize("seed", range(1, 3))
def test_who_preempted_one_batch_of_a_heavy_flow_is_not_held_back_by_the_next(seed: int) -> None:
    machine = replace(PROCESSOR, num_layers=6)
    rate = (1 - FIXED_SHARE) / (TOKENS * machine.per_token_s)
    light = light_tasks(0.4 * rate, 100 * seed)
    noisy = rows_at(poisson(2 * rate, seed), "noisy", first_group=NOISY)

    alone, beside = (simulate(machine, rows, until_s=SECONDS) for rows in (light, [*light, *noisy]))

    assert p99(beside) <= 2 * p99(alone)


@pytest.mark.parametrize("seed", range(2))
def test_bursts_of_light_tasks_hardly_wait_for_a_heavy_flow(seed: int) -> None:
    rate, size = capacity(LAYERED), 6
    bursts = light_tasks(0.3 * rate / size, 100 * seed)
    light = [
        Arrival(at_s=it.at_s, row=changed(it.row, group=size * it.row.spec.group + number))
        for it in bursts
        for number in range(size)
    ]
    noisy = rows_at(poisson(3 * rate, seed), "noisy", first_group=NOISY)

    alone, beside = (simulate(LAYERED, rows, until_s=SECONDS) for rows in (light, [*light, *noisy]))

    assert p99(beside) <= 2 * p99(alone)


@pytest.mark.parametrize(("num_tasks", "load"), [(16, 1.3), (2, 0.85), (4, 0.85)])
def test_tasks_that_ask_for_as_much_as_each_other_preempt_next_to_nothing(
    num_tasks: int, load: float
) -> None:
    """Chance makes one flow heavy now and then; short batches that go first cost all flows."""
    rate = load / (TOKENS * LAYERED.per_token_s)
    arrivals = many_tasks("task", num_tasks, rate / num_tasks)

    assert p99(simulate(LAYERED, arrivals)) == pytest.approx(
        p99(simulate(replace(LAYERED, num_layers=1), arrivals)), rel=0.05
    )


@pytest.mark.parametrize("caller", ["any", "rival-{}"])
@pytest.mark.parametrize("num_rivals", [1, 3])
def test_heavy_flows_get_as_much_as_each_other_whoever_goes_first(
    num_rivals: int, caller: str
) -> None:
    rate = capacity(LAYERED)
    rivals = many_tasks("rival", num_rivals, 2 * rate, seed=7, caller=caller)
    noisy = rows_at(poisson(3 * rate, 1), "noisy", first_group=NOISY)

    waits = simulate(LAYERED, [*rivals, *noisy], until_s=SECONDS)

    assert num_noisy(waits) == pytest.approx(len(waits) / (1 + num_rivals), rel=0.1)


def median_of_light(waits: dict[int, float]) -> float:
    return median(wait for group, wait in waits.items() if group >= LIGHT)


def num_noisy(waits: dict[int, float]) -> int:
    return sum(group < LIGHT for group in waits)
