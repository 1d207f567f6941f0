"""Laws of the waits between flows, on a simulated clock with the real planner and time model."""

import random
from dataclasses import replace
from statistics import median

import pytest

from doubles.simulation import Arrival, Machine, rows_at, simulate
from doubles.waiting import WaitingRow
from nunatak_server.scheduler.batch_time import FIXED_SHARE
from nunatak_server.scheduler.planner import TurnRules

TOKENS = 16
PROCESSOR = Machine(fixed_s=0.002, per_token_s=0.005 / TOKENS)
"""As MiniLM on one core: five milliseconds for a short text."""
NOISY, LIGHT = 0, 10**6
"""First groups of the noisy task and of the light ones."""
SECONDS = 10.0


def poisson(rate: float, seed: int, seconds: float = SECONDS) -> list[float]:
    draw, times, at_s = random.Random(seed), list[float](), 0.0
    while (at_s := at_s + draw.expovariate(rate)) < seconds:
        times.append(at_s)
    return times


def light_tasks(total_rate: float, seed: int) -> list[Arrival]:
    return [
        arrival
        for index in range(9)
        for arrival in rows_at(
            poisson(total_rate / 9, seed + index), f"light-{index}", first_group=LIGHT * (index + 1)
        )
    ]


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


@pytest.mark.parametrize("seed", range(1, 4))
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
        Arrival(at_s=it.at_s, row=replace(it.row, group=size * it.row.group + number))
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
    arrivals = [
        arrival
        for index in range(num_tasks)
        for arrival in rows_at(
            poisson(rate / num_tasks, index), f"task-{index}", first_group=LIGHT * (index + 1)
        )
    ]

    assert p99(simulate(LAYERED, arrivals)) == pytest.approx(
        p99(simulate(replace(LAYERED, num_layers=1), arrivals)), rel=0.05
    )


@pytest.mark.parametrize("caller", ["any", "rival-{}"])
@pytest.mark.parametrize("num_rivals", [1, 3])
def test_heavy_flows_get_as_much_as_each_other_whoever_goes_first(
    num_rivals: int, caller: str
) -> None:
    rate = capacity(LAYERED)
    rivals = [
        arrival
        for index in range(num_rivals)
        for arrival in rows_at(
            poisson(2 * rate, 7 + index),
            f"rival-{index}",
            first_group=LIGHT * (index + 1),
            caller=caller.format(index),
        )
    ]
    noisy = rows_at(poisson(3 * rate, 1), "noisy", first_group=NOISY)

    waits = simulate(LAYERED, [*rivals, *noisy], until_s=SECONDS)

    assert num_noisy(waits) == pytest.approx(len(waits) / (1 + num_rivals), rel=0.1)


def median_of_light(waits: dict[int, float]) -> float:
    return median(wait for group, wait in waits.items() if group >= LIGHT)


def num_noisy(waits: dict[int, float]) -> int:
    return sum(group < LIGHT for group in waits)


@pytest.mark.parametrize("num_layers", [1, 6])
def test_a_caller_with_many_tasks_gets_no_more_than_one_with_one(num_layers: int) -> None:
    machine = replace(PROCESSOR, num_layers=num_layers)
    busy = [
        arrival
        for index in range(9)
        for arrival in rows_at(
            [0.0] * 100, f"task-{index}", first_group=1000 * index, caller="busy"
        )
    ]
    modest = rows_at([0.0] * 100, "task", first_group=LIGHT, caller="modest")

    waits = simulate(machine, [*busy, *modest])

    done = max(wait for group, wait in waits.items() if group >= LIGHT)
    alone = max(simulate(machine, modest).values())
    assert done <= 2.1 * alone


@pytest.mark.parametrize("num_layers", [1, 6])
def test_a_weight_is_a_share_of_the_device(num_layers: int) -> None:
    machine = replace(PROCESSOR, num_layers=num_layers)
    rules: TurnRules[WaitingRow] = TurnRules(weights={"gold": 3.0})
    gold = rows_at([0.0] * 90, "task", first_group=NOISY, caller="gold")
    free = rows_at([0.0] * 90, "task", first_group=LIGHT, caller="free")

    waits = simulate(machine, [*gold, *free], rules=rules)

    done = max(wait for group, wait in waits.items() if group < LIGHT)
    answered = sum(wait <= done for group, wait in waits.items() if group >= LIGHT)
    assert answered == pytest.approx(30, abs=5)
