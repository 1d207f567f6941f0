"""A batch belongs to one backbone, and the order of the queue holds across backbones."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.waiting import WaitingRow, left_by, waiting_row
from nunatak_server.scheduler.batch_time import BatchLimits
from nunatak_server.scheduler.planner import (
    OLDEST_EVERY,
    TurnOrder,
    TurnRules,
    add_shadows,
    plan_batch,
    plan_next,
)
from nunatak_server.scheduler.rows import Queues, work_added

LIMITS = BatchLimits(max_tokens=64, max_rows=8)


@st.composite
def rows_of_backbones(draw: st.DrawFn) -> list[WaitingRow]:
    """Rows of few tasks; each task has one backbone."""
    tasks = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=24))
    return [
        replace(waiting_row(task, group), backbone="heavy" if task in "ab" else "light")
        for group, task in enumerate(tasks)
    ]


@given(rows_of_backbones())
@settings(derandomize=True)
def test_each_batch_belongs_to_one_backbone_and_every_row_is_computed(
    rows: list[WaitingRow],
) -> None:
    pending, order = list(rows), TurnOrder()
    for number in itertools.count(1):
        found = plan_next(Queues(pending), limits=LIMITS, order=order)
        assert len({it.backbone for it in found.batch}) == 1
        order, pending = found.order, left_by(found, pending)
        if not pending:
            break
        assert number <= OLDEST_EVERY * len(rows)


def test_rows_of_one_text_on_two_backbones_go_one_after_the_other() -> None:
    first = waiting_row("tone", 1)
    second = replace(waiting_row("topic", 2), encoding=first.encoding, backbone="other")

    found = plan_batch(Queues([first, second]), limits=LIMITS)
    rest = plan_batch(Queues([second]), limits=LIMITS, order=found.order)

    assert (found.batch, rest.batch) == ((first,), (second,))


def test_a_shadow_of_another_backbone_is_left_out() -> None:
    plan = plan_batch(Queues([waiting_row("tone", 1)]), limits=LIMITS)
    shadow = replace(waiting_row("tone", 1), backbone="other")

    filled = add_shadows(plan, [shadow], limits=LIMITS, rules=TurnRules())

    assert filled.batch == plan.batch


def test_the_work_of_a_row_counts_the_cost_of_its_tokens() -> None:
    row = waiting_row("tone", 1)

    assert work_added(replace(row, token_cost=3.0)) == 3 * work_added(row)


@pytest.mark.parametrize("token_cost", [1.0, 0.1])
def test_the_bound_of_the_work_counts_tokens_of_the_backbone_of_the_batch(
    token_cost: float,
) -> None:
    limits = BatchLimits(max_tokens=1000, max_rows=100, max_work=24.0)
    rows = [replace(waiting_row("tone", n, tokens=4), token_cost=token_cost) for n in range(20)]

    assert len(plan_batch(Queues(rows), limits=limits).batch) == 6
