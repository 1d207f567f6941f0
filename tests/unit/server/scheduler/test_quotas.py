"""Laws of quotas: no caller gets more than its quota in a minute or a day of UTC."""

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.refusals import raises
from doubles.serving import ManualClock
from nunatak_contract.errors import NunatakError
from nunatak_server.scheduler.admission import Admission
from nunatak_server.scheduler.turns import Quota, Quotas

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

    for allowed in (2, 2, 2):
        assert [is_taken(quotas) for _ in range(2)] == [True] * allowed
        with raises("quota_exceeded") as refused:
            quotas.count_request("one", {})
        until = refused.value.fields["retry_after_s"]
        assert isinstance(until, int)
        clock.now += until - 2
        assert not is_taken(quotas)
        clock.now += 2


def test_a_spent_day_names_the_time_of_the_next_day() -> None:
    clock = ManualClock(now=DAY_S + 10.0)
    quotas = Quotas({Quota.REQUESTS_PER_MINUTE: 1, Quota.REQUESTS_PER_DAY: 1}, now=clock)
    assert is_taken(quotas)

    with raises("quota_exceeded", match="1 requests a day") as refused:
        quotas.count_request("one", {})

    assert refused.value.fields["retry_after_s"] == DAY_S - 10


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


def test_a_clock_that_goes_back_frees_nothing() -> None:
    clock = ManualClock(now=1000.0)
    quotas = Quotas(PER_MINUTE, now=clock)
    assert [is_taken(quotas) for _ in range(3)] == [True, True, False]

    clock.now -= MINUTE_S

    assert not is_taken(quotas)


def test_a_clock_that_was_far_ahead_refuses_nobody_once_it_is_right() -> None:
    clock = ManualClock(now=1000.0 + 1e6 * MINUTE_S)
    quotas = Quotas(PER_MINUTE, now=clock)
    assert [is_taken(quotas) for _ in range(3)] == [True, True, False]

    clock.now = 1000.0

    assert [is_taken(quotas) for _ in range(3)] == [True, True, False]
