from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from nunatak_server.batching.planner import BatchLimits, BatchPlan, plan_batch

NOW = 100.0
LATER = 200.0
LIMITS = BatchLimits(max_tokens=64, max_rows=6)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WaitingRow:
    task: str
    group: int
    trunk_key: str
    trunk_tokens: int = 4
    branch_tokens: int = 4
    deadline: float = LATER
    is_cancelled: bool = False


def row(task: str, group: int, *, tokens: int = 4) -> WaitingRow:
    return WaitingRow(
        task=task, group=group, trunk_key=str(group), trunk_tokens=tokens, branch_tokens=tokens
    )


def plan(rows: list[WaitingRow], limits: BatchLimits = LIMITS) -> BatchPlan[WaitingRow]:
    return plan_batch(rows, limits=limits, now=NOW)


def cost(rows: tuple[WaitingRow, ...]) -> int:
    trunks = {r.trunk_key: r.trunk_tokens for r in rows if r.trunk_tokens}
    return sum(trunks.values()) + sum(r.branch_tokens for r in rows)


@st.composite
def waiting_rows(draw: st.DrawFn) -> list[WaitingRow]:
    rows: list[WaitingRow] = []
    for group in range(draw(st.integers(0, 12))):
        # A row may need up to half the budget as trunk and half as branch: the admissible most.
        tokens = draw(st.integers(1, LIMITS.max_tokens // 2))
        key = draw(st.sampled_from(["x", "y", "z"])) + str(tokens)
        rows.extend(
            WaitingRow(
                task=draw(st.sampled_from("abcde")),
                group=group,
                trunk_key=key,
                trunk_tokens=draw(st.sampled_from([0, tokens])),
                branch_tokens=draw(st.sampled_from([0, tokens])),
                deadline=draw(st.sampled_from([NOW - 1, NOW, LATER])),
                is_cancelled=draw(st.booleans()),
            )
            for _ in range(draw(st.integers(1, 4)))
        )
    return rows


@given(waiting_rows())
@settings(derandomize=True)
def test_every_row_ends_in_exactly_one_place(rows: list[WaitingRow]) -> None:
    found = plan(rows)

    places = [*found.batch, *found.expired, *found.cancelled, *found.waiting]
    assert sorted(map(id, places)) == sorted(map(id, rows))


@given(waiting_rows())
@settings(derandomize=True)
def test_a_batch_never_exceeds_its_limits(rows: list[WaitingRow]) -> None:
    found = plan(rows)

    assert len(found.batch) <= LIMITS.max_rows
    assert found.num_tokens == cost(found.batch) <= LIMITS.max_tokens


@given(waiting_rows())
@settings(derandomize=True)
def test_expired_and_cancelled_rows_are_never_computed(rows: list[WaitingRow]) -> None:
    found = plan(rows)

    assert all(r.deadline > NOW and not r.is_cancelled for r in (*found.batch, *found.waiting))
    assert all(r.is_cancelled for r in found.cancelled)
    assert all(r.deadline <= NOW and not r.is_cancelled for r in found.expired)


@given(waiting_rows())
@settings(derandomize=True)
def test_the_oldest_live_row_is_always_taken(rows: list[WaitingRow]) -> None:
    found = plan(rows)

    live = [r for r in rows if r.deadline > NOW and not r.is_cancelled]
    assert not live or live[0] in found.batch


@given(waiting_rows())
@settings(derandomize=True)
def test_rows_that_wait_keep_their_order(rows: list[WaitingRow]) -> None:
    found = plan(rows)

    positions = {id(r): index for index, r in enumerate(rows)}
    kept = [positions[id(r)] for r in found.waiting]
    assert kept == sorted(kept)


@given(waiting_rows())
@settings(derandomize=True)
def test_planning_again_and_again_serves_everybody(rows: list[WaitingRow]) -> None:
    pending = [r for r in rows if r.deadline > NOW and not r.is_cancelled]
    num_live, num_served, num_batches = len(pending), 0, 0

    while pending:
        found = plan(pending)
        pending = list(found.waiting)
        num_served += len(found.batch)
        num_batches += 1

    assert num_served == num_live
    assert num_batches <= num_live


def test_a_hot_task_leaves_a_turn_to_a_quiet_one() -> None:
    hot = [row("hot", group) for group in range(100)]
    quiet = row("quiet", 100)

    found = plan([*hot, quiet])

    assert quiet in found.batch


def test_tasks_take_turns() -> None:
    rows = [row("a", 0), row("a", 1), row("a", 2), row("b", 3), row("b", 4), row("b", 5)]

    found = plan(rows, BatchLimits(max_tokens=1000, max_rows=4))

    assert [r.group for r in found.batch] == [0, 3, 1, 4]


def test_rows_of_one_text_land_in_one_batch() -> None:
    fan_out = [row(task, 7) for task in "abc"]
    others = [row(task, group) for group, task in enumerate("ddd")]

    found = plan([*others, *fan_out], BatchLimits(max_tokens=1000, max_rows=4))

    assert [r.group for r in found.batch] == [0, 7, 7, 7]


def test_a_shared_trunk_row_is_paid_for_once() -> None:
    fan_out = [row(task, 7, tokens=10) for task in "abcde"]

    found = plan(fan_out, BatchLimits(max_tokens=60, max_rows=10))

    assert len(found.batch) == 5
    assert found.num_tokens == 60
    assert found.num_trunk_rows == 1


def test_a_row_without_room_keeps_the_order_of_its_task() -> None:
    long, short = row("a", 1, tokens=32), row("a", 2, tokens=1)
    first, other = row("b", 0, tokens=8), row("c", 3, tokens=1)

    found = plan([first, long, short, other])

    assert found.batch == (first, other)
    assert found.waiting == (long, short)
