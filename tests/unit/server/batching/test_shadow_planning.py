"""Shadow rows never cost a row that somebody waits for its place."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from nunatak_server.batching.planner import BatchLimits, BatchPlan, plan_batch
from nunatak_server.batching.senders import Priority
from nunatak_server.batching.shadow_planning import plan_with_shadows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FakeRow:
    task: str = "tone"
    group: int = 0
    trunk_key: str = "text"
    trunk_tokens: int = 4
    branch_tokens: int = 2
    trunk_share: float = 0.5
    deadline: float = 10.0
    is_cancelled: bool = False
    is_shadow: bool = False
    caller: str = ""
    priority: Priority = Priority.NORMAL


def plan(rows: Sequence[FakeRow], max_tokens: int = 100, max_rows: int = 100) -> BatchPlan[FakeRow]:
    limits = BatchLimits(max_tokens=max_tokens, max_rows=max_rows)
    return plan_with_shadows(rows, limits=limits, plan=partial(plan_batch, limits=limits, now=0.0))


def test_a_shadow_shares_the_trunk_row_of_what_it_shadows() -> None:
    own, shadow = FakeRow(), FakeRow(is_shadow=True)

    planned = plan([own, shadow])

    assert planned.batch == (own, shadow)
    assert (planned.num_tokens, planned.num_trunk_rows) == (4 + 2 + 2, 1)


def test_a_shadow_that_finds_no_room_is_dropped_and_never_waits() -> None:
    own, shadow = FakeRow(), FakeRow(is_shadow=True)

    for planned in (plan([own, shadow], max_tokens=7), plan([own, shadow], max_rows=1)):
        assert (planned.batch, planned.expired, planned.waiting) == ((own,), (shadow,), ())


def test_no_shadow_is_taken_while_a_row_that_somebody_waits_for_does_not_fit() -> None:
    small, large = FakeRow(), FakeRow(trunk_key="long", trunk_tokens=90, group=1)
    shadow = FakeRow(is_shadow=True)

    planned = plan([shadow, small, large], max_tokens=20)

    assert (planned.batch, planned.waiting, planned.expired) == ((small,), (large,), (shadow,))


def test_a_shadow_without_what_it_shadows_is_not_computed() -> None:
    gone, shadow = FakeRow(is_cancelled=True), FakeRow(is_shadow=True)

    planned = plan([gone, shadow])

    assert (planned.batch, planned.cancelled, planned.expired) == ((), (gone,), (shadow,))


rows = st.builds(
    FakeRow,
    task=st.sampled_from("abc"),
    group=st.integers(0, 3),
    trunk_key=st.sampled_from("xyz"),
    trunk_tokens=st.sampled_from([0, 4, 9]),
    branch_tokens=st.integers(0, 9),
    is_cancelled=st.booleans(),
    is_shadow=st.booleans(),
)


@given(pending=st.lists(rows, max_size=20), max_tokens=st.integers(18, 60))
def test_what_callers_wait_for_is_planned_as_if_there_were_no_shadows(
    pending: list[FakeRow], max_tokens: int
) -> None:
    own = [row for row in pending if not row.is_shadow]

    with_shadows, alone = plan(pending, max_tokens), plan(own, max_tokens)

    assert tuple(row for row in with_shadows.batch if not row.is_shadow) == alone.batch
    assert with_shadows.waiting == alone.waiting
    assert with_shadows.num_tokens <= max_tokens
    places = (*with_shadows.batch, *with_shadows.expired, *with_shadows.cancelled)
    assert sorted(map(id, (*places, *with_shadows.waiting))) == sorted(map(id, pending))
