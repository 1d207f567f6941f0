"""Shadow rows never take the place of a row with a waiting caller."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.waiting import WaitingRow, text_of
from nunatak_model import Encoding
from nunatak_server.scheduler.batch_time import BatchLimits
from nunatak_server.scheduler.planner import BatchPlan, TurnRules, add_shadows, plan_batch
from nunatak_server.scheduler.rows import Queues

TEXT = text_of("text")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FakeRow(WaitingRow):
    task: str = "tone"
    group: int = 0
    encoding: Encoding = TEXT
    branch_tokens: int = 2
    deadline: float = 10.0
    caller: str = ""


def plan(
    rows: Sequence[FakeRow],
    shadows: Sequence[FakeRow] = (),
    *,
    max_tokens: int = 100,
    max_rows: int = 100,
    max_work: float = inf,
    held: Sequence[FakeRow] = (),
) -> BatchPlan[FakeRow]:
    limits = BatchLimits(max_tokens=max_tokens, max_rows=max_rows, max_work=max_work)
    rules: TurnRules[FakeRow] = TurnRules(is_trunk_held=lambda row: row in held)
    planned = plan_batch(Queues(rows), limits=limits, rules=rules)
    return add_shadows(planned, shadows, limits=limits, rules=rules)


def test_a_shadow_shares_the_trunk_row_of_what_it_shadows() -> None:
    own, shadow = FakeRow(), FakeRow()

    planned = plan([own], [shadow])

    assert planned.batch == (own, shadow)
    assert (planned.num_tokens, planned.num_trunk_rows) == (4 + 2 + 2, 1)


@pytest.mark.parametrize(
    ("shadow", "work"),
    [
        pytest.param(FakeRow(), 2 * 0.5, id="as-high"),
        pytest.param(FakeRow(trunk_share=0.25), 2 * 0.75, id="lower"),
        pytest.param(FakeRow(trunk_share=0.75), 4 * 0.25 + 2 * 0.25, id="higher"),
        pytest.param(FakeRow(encoding=text_of("longer")), 4 * 0.5 + 2 * 0.5, id="other-text"),
    ],
)
def test_a_shadow_costs_what_it_adds_and_has_room_for_no_less(shadow: FakeRow, work: float) -> None:
    own = FakeRow()
    alone = plan([own])

    both = plan([own], [shadow], max_work=alone.work + work)

    assert both.batch == (own, shadow)
    assert both.work - alone.work == both.asked_tokens - alone.asked_tokens == work
    assert plan([own], [shadow], max_work=alone.work + work - 0.01).batch == (own,)


def test_a_shadow_whose_trunk_state_is_held_costs_its_branch_alone() -> None:
    own, shadow = FakeRow(), FakeRow()

    planned = plan([own], [shadow], held=[own, shadow])

    assert (planned.work, planned.asked_tokens) == (2, 2 * (2 * 0.5) + 4 * 0.5 * 2)
    assert (planned.num_tokens, planned.num_trunk_rows, planned.num_held_rows) == (4, 0, 2)


def test_a_shadow_that_finds_no_room_is_not_taken() -> None:
    own, shadow = FakeRow(), FakeRow()

    assert plan([own], [shadow], max_tokens=7).batch == (own,)
    assert plan([own], [shadow], max_rows=1).batch == (own,)


def test_no_shadow_is_taken_while_a_row_that_somebody_waits_for_does_not_fit() -> None:
    small, large = FakeRow(), FakeRow(encoding=text_of("long"), trunk_tokens=90, group=1)

    assert plan([small, large], [FakeRow()], max_tokens=20).batch == (small,)


def test_a_shadow_without_what_it_shadows_is_not_computed() -> None:
    assert plan([], [FakeRow()]).batch == ()


rows = st.builds(
    FakeRow,
    task=st.sampled_from("abc"),
    group=st.integers(0, 3),
    encoding=st.sampled_from("xyz").map(text_of),
    trunk_tokens=st.sampled_from([0, 4, 9]),
    branch_tokens=st.integers(0, 9),
)


@given(
    own=st.lists(rows, max_size=20),
    shadows=st.lists(rows, max_size=20),
    max_tokens=st.integers(18, 60),
    max_work=st.floats(0, 60),
)
def test_what_callers_wait_for_is_planned_as_if_there_were_no_shadows(
    own: list[FakeRow], shadows: list[FakeRow], max_tokens: int, max_work: float
) -> None:
    both = plan(own, shadows, max_tokens=max_tokens, max_work=max_work)
    alone = plan(own, max_tokens=max_tokens, max_work=max_work)

    num_own = len(alone.batch)
    assert both.batch[:num_own] == alone.batch
    assert set(both.batch[num_own:]) <= set(shadows)
    assert both.order == alone.order
    assert both.num_tokens <= max_tokens
    assert both.work <= max(alone.work, max_work)
