"""Laws of admission and of quotas, of which no caller gets more in a minute or a day of UTC."""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.refusals import raises
from doubles.serving import ManualClock
from nunatak_contract.errors import NunatakError
from nunatak_server.errors import OverloadedError
from nunatak_server.scheduler.admission import CALLER_SHARE, MAX_RETRY_S, Admission
from nunatak_server.scheduler.batch_time import BatchTimeModel
from nunatak_server.scheduler.rows import Priority
from nunatak_server.scheduler.turns import Quota, Quotas

PACE = BatchTimeModel(tokens_per_s=10.0, largest_tokens=20.0)


def make_admission(
    *,
    max_requests: int = 100,
    max_tokens: int = 100,
    max_bytes: int = 100,
    time_model: BatchTimeModel = PACE,
    jitter: float = 1.0,
    caller_share: float | None = CALLER_SHARE,
) -> Admission:
    return Admission(
        max_requests=max_requests,
        max_tokens=max_tokens,
        max_bytes=max_bytes,
        caller_share=caller_share,
        time_model=lambda: time_model,
        draw=lambda _, __: jitter,
    )


@pytest.mark.parametrize(
    ("callers", "amounts", "said"),
    [
        (("a", "b", "c"), (60, 40, 1), "100 {}"),
        (("greedy", "modest", "greedy"), (80, 19, 1), "this caller"),
    ],
    ids=["all", "one-caller"],
)
@pytest.mark.parametrize("what", ["bytes", "tokens"])
def test_what_is_held_next_to_others_is_bounded_for_a_caller_and_for_all(
    what: str, callers: tuple[str, ...], amounts: tuple[int, ...], said: str
) -> None:
    admission = make_admission(max_bytes=100, max_tokens=100)

    with ExitStack() as stack:
        held = [holding(stack, admission, it, what) for it in callers]
        for take, amount in zip(held[:2], amounts, strict=False):
            take(amount)
        with pytest.raises(OverloadedError, match=said.format(what)):
            held[2](amounts[2])

    assert (admission.bytes.total, admission.tokens.total, admission.requests.total) == (0, 0, 0)


def holding(
    stack: ExitStack, admission: Admission, caller: str, what: str
) -> Callable[[float], None]:
    """Return how a request of a caller takes bytes, or tokens for two tasks."""
    if what == "bytes":
        held = stack.enter_context(admission.hold_bytes(caller))
        return lambda amount: held.take(int(amount))
    permit = stack.enter_context(admission.admit(caller))
    return lambda amount: permit.take_tokens({"tone": amount / 2, "other": amount / 2})


@pytest.mark.parametrize(("num_parts", "num_bytes"), [(1, 5000), (50, 10)])
def test_a_body_is_never_refused_for_itself(num_parts: int, num_bytes: int) -> None:
    admission = make_admission(max_bytes=100)

    with admission.hold_bytes() as held:
        for _ in range(num_parts):
            held.take(num_bytes)

        assert admission.bytes.total == num_parts * num_bytes


def fill(admission: Admission, stack: ExitStack, caller: str) -> int:
    """Send requests of a caller until one is refused."""
    for count in range(10_000):
        try:
            stack.enter_context(admission.admit(caller))
        except OverloadedError as error:
            if error.code == "share_exceeded":
                return count
            raise
    raise AssertionError("a caller has filled the queue")


def test_callers_that_fill_their_shares_leave_room_for_the_next() -> None:
    admission = make_admission(max_requests=1000)

    with ExitStack() as stack:
        counts = [fill(admission, stack, f"caller-{number}") for number in range(4)]

        assert counts[0] == 800
        assert all(counts)
        with admission.admit("next"):
            assert admission.requests.total == sum(counts) + 1


def test_the_only_caller_there_can_be_fills_the_queue_and_is_told_that_it_is_full() -> None:
    admission = make_admission(max_requests=100, max_tokens=100, caller_share=None)

    with ExitStack() as stack:
        permits = [stack.enter_context(admission.admit(tasks=[str(n % 50)])) for n in range(100)]
        with pytest.raises(OverloadedError, match="queue is full"), admission.admit():
            pass
        for number, permit in enumerate(permits):
            permit.take_tokens({str(number % 50): 1})
        with pytest.raises(OverloadedError, match="100 tokens"):
            permits[0].take_tokens({"0": 1})


HELD = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(0, 60)), max_size=14
)


@given(HELD, st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(0, 60))
@settings(derandomize=True)
def test_what_is_refused_before_it_is_read_is_what_would_be_refused_after(
    held: list[tuple[str, str, int]], caller: str, task: str, num_bytes: int
) -> None:
    admission = make_admission(max_requests=10, max_bytes=100)
    with ExitStack() as stack:
        for name, own_task, count in held:
            with suppress(OverloadedError):
                admission.check_capacity(name, tasks=[own_task], num_bytes=count)
                stack.enter_context(admission.hold_bytes(name)).take(count)
                stack.enter_context(admission.admit(name, tasks=[own_task]))

        assert refusal_of(
            lambda: admission.check_capacity(caller, tasks=[task], num_bytes=num_bytes)
        ) == (refusal_of(lambda: enter(admission, caller, task, num_bytes)))


class Searching(Admission):
    """Checks the share of every holder, also while there is plenty of room."""

    def _has_plenty(self, total: float, wanted: float, limit: int) -> bool:
        return False


ASKED = st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(0, 40))


@given(st.lists(ASKED, max_size=14), st.sampled_from([None, 4.0]))
@settings(derandomize=True)
def test_that_there_is_plenty_is_never_said_where_somebody_would_be_refused(
    asked: list[tuple[str, str, int]], caller_share: float | None
) -> None:
    told = list[list[str | None]]()
    for kind in (Admission, Searching):
        admission = kind(
            max_requests=10,
            max_bytes=100,
            max_tokens=90,
            caller_share=caller_share,
            draw=lambda low, _: low,
        )
        with ExitStack() as stack:
            told.append(
                [
                    refusal_of(partial(take, stack, admission, caller, task, amount))
                    for caller, task, amount in asked
                ]
            )
    assert told[0] == told[1]


def take(stack: ExitStack, admission: Admission, caller: str, task: str, amount: int) -> None:
    admission.check_capacity(caller, tasks=[task], num_bytes=amount)
    stack.enter_context(admission.hold_bytes(caller)).take(amount)
    permit = stack.enter_context(admission.admit(caller, tasks=[task]))
    permit.take_tokens({task: amount, "other": amount / 2})


def enter(admission: Admission, caller: str, task: str, num_bytes: int) -> None:
    with admission.admit(caller, tasks=[task]), admission.hold_bytes(caller) as held:
        held.take(num_bytes)


def refusal_of(act: Callable[[], None]) -> str | None:
    try:
        act()
    except OverloadedError as error:
        return str(error)
    return None


def test_a_task_alone_leaves_room_for_others_of_its_caller() -> None:
    admission = make_admission(max_requests=92, max_tokens=90)

    with ExitStack() as stack:
        first, second = (stack.enter_context(admission.admit()) for _ in range(2))
        first.take_tokens({"noisy": 60})
        with pytest.raises(OverloadedError, match="this task"):
            second.take_tokens({"noisy": 1})
        second.take_tokens({"light": 10})
        for _ in range(60):
            stack.enter_context(admission.admit(tasks=["noisy"]))
        with pytest.raises(OverloadedError, match="this task"), admission.admit(tasks=["noisy"]):
            pass
        for _ in range(10):
            stack.enter_context(admission.admit(tasks=["light"]))


def test_tokens_that_a_request_takes_in_parts_count_together() -> None:
    parts, whole = make_admission(max_tokens=90), make_admission(max_tokens=90)

    with parts.admit() as permit, whole.admit() as other:
        for _ in range(60):
            permit.take_tokens({"tone": 1})
        other.take_tokens({"tone": 60})
        for each in (permit, other):
            with raises("request_too_large", match="task may take 60 tokens"):
                each.take_tokens({"tone": 1})
        assert parts.tokens.total == whole.tokens.total == 60

    assert parts.tokens.total == whole.tokens.total == 0


@pytest.mark.parametrize(
    ("tokens", "holder", "limit"),
    [
        ({"tone": 61}, "task", 60),
        ({"tone": 40, "other": 33}, "caller", 72),
        ({"tone": 5000}, "caller", 72),
    ],
)
def test_a_request_alone_is_taken_unless_it_leaves_no_room_for_others(
    tokens: dict[str, float], holder: str, limit: int
) -> None:
    """A caller, or a task of a caller, can hold only a share of the queue."""
    admission = make_admission(max_tokens=90)

    with admission.admit("a") as permit:
        with raises("request_too_large", match=f"{holder} may take {limit} tokens"):
            permit.take_tokens(tokens)
        assert admission.tokens.total == 0
        permit.take_tokens({"tone": 60, "other": 12})


@pytest.mark.parametrize(
    ("tokens", "jitter", "seconds"),
    [(0, 1.0, 1), (40, 0.5, 4), (40, 1.0, 8), (40, 1.5, 12), (4000, 1.0, MAX_RETRY_S)],
)
def test_who_is_refused_returns_when_the_queue_has_drained_or_in_a_minute(
    tokens: int, jitter: float, seconds: int
) -> None:
    admission = make_admission(max_tokens=5 * tokens // 2, jitter=jitter)

    assert make_admission(time_model=BatchTimeModel()).retry_after_s() == 1
    with admission.admit() as permit:
        permit.take_tokens({"tone": tokens, "other": tokens})

        assert admission.retry_after_s() == seconds


def test_rows_wait_for_what_is_queued_before_them_less_one_batch() -> None:
    idle = make_admission(time_model=PACE._replace(tokens_per_s=1e-9))
    busy = make_admission(max_tokens=200)
    new = make_admission(max_tokens=200, time_model=BatchTimeModel())

    assert idle.wait_s(("a", Priority.NORMAL, "tone")) == 0
    with busy.admit("a") as permit, new.admit("a") as other:
        for each in (permit, other):
            each.take_tokens({"tone": 70})

        assert permit.wait_s("tone") == (70 - 20) / 10
        assert permit.wait_s("other") == 0
        assert other.wait_s("tone") == 0, "no batch has run"


MINUTE_S, DAY_S = 60, 86_400
PER_MINUTE = {Quota.REQUESTS_PER_MINUTE: 2}


def is_taken(quotas: Quotas, caller: str = "one", limits: dict[Quota, int] | None = None) -> bool:
    with suppress(NunatakError):
        quotas.count_request(caller, limits or {})
        return True
    return False


@settings(deadline=None)
@given(
    limit=st.integers(1, 5),
    steps=st.lists(st.floats(0, 200, allow_nan=False), max_size=60),
    quota=st.sampled_from([Quota.REQUESTS_PER_MINUTE, Quota.REQUESTS_PER_DAY]),
)
def test_each_period_has_as_many_requests_as_the_quota_and_no_more(
    limit: int, steps: list[float], quota: Quota
) -> None:
    clock, taken = ManualClock(), dict[int, int]()
    quotas = Quotas({quota: limit}, now=clock)
    period_s = MINUTE_S if quota.endswith("minute") else DAY_S

    for step in steps:
        clock.now += step
        period = int(clock.now // period_s)
        before = taken.get(period, 0)
        assert is_taken(quotas) == (before < limit)
        taken[period] = min(limit, before + 1)


def test_after_the_time_of_a_refusal_a_request_is_taken() -> None:
    clock = ManualClock(now=1_000_000.25)
    quotas = Quotas({**PER_MINUTE, Quota.REQUESTS_PER_DAY: 4}, now=clock)

    for spent in ("2 requests a minute", "4 requests a day", "2 requests a minute"):
        assert [is_taken(quotas) for _ in range(2)] == [True, True]
        with raises("quota_exceeded", match=spent) as refused:
            quotas.count_request("one", {})
        until = refused.value.fields["retry_after_s"]
        assert isinstance(until, int)
        clock.now += until - 2
        assert not is_taken(quotas)
        clock.now += 2


def test_a_quota_of_tokens_is_spent_by_the_tokens_that_admission_counts() -> None:
    clock = ManualClock()
    quotas = Quotas({Quota.TOKENS_PER_MINUTE: 100}, now=clock)
    admission = Admission(max_requests=9, max_tokens=1000, max_bytes=9, quotas=quotas)

    for _ in range(2):
        assert is_taken(quotas)
        with admission.admit("one") as permit:
            permit.take_tokens({"tone": 30.0, "intent": 25.0})

    assert not is_taken(quotas)
    assert is_taken(quotas, "other")
    clock.now += MINUTE_S
    assert is_taken(quotas)


def test_an_own_quota_stands_in_the_place_of_the_general_one() -> None:
    quotas = Quotas(PER_MINUTE, now=ManualClock())
    own = {Quota.REQUESTS_PER_MINUTE: 3}

    assert [is_taken(quotas, "one") for _ in range(3)] == [True, True, False]
    assert [is_taken(quotas, "own", own) for _ in range(4)] == [True, True, True, False]


def test_without_a_quota_nothing_is_kept_of_a_caller() -> None:
    quotas = Quotas({}, now=ManualClock())

    assert all(is_taken(quotas) for _ in range(1000))
    quotas.count_tokens("one", 1e12)
    assert [is_taken(quotas, "one", PER_MINUTE) for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(("num_periods", "frees"), [(1, False), (1e6, True)])
def test_only_a_clock_that_was_far_ahead_frees_something_when_it_goes_back(
    num_periods: float, *, frees: bool
) -> None:
    clock = ManualClock(now=1000.0 + num_periods * MINUTE_S)
    quotas = Quotas(PER_MINUTE, now=clock)
    assert [is_taken(quotas) for _ in range(3)] == [True, True, False]

    clock.now = 1000.0

    assert [is_taken(quotas) for _ in range(3)] == [frees, frees, False]
