"""A load thread rests in proportion to its work, not for long, and only during batches."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from nunatak_server.residency.loading import MAX_REST_S, LoadThrottle


@dataclass
class Load:
    """A load thread that counts work and rest separately."""

    worked_s: float = 0.0
    rests: list[float] = field(default_factory=list[float])

    def throttle(self, is_wanted: Callable[[], bool] = lambda: True) -> LoadThrottle:
        return LoadThrottle(is_wanted, rest=self.rests.append, worked=lambda: self.worked_s)


def test_each_piece_is_followed_by_a_rest_in_proportion() -> None:
    load = Load()
    throttle = load.throttle()

    throttle.begin()
    for piece_s in (0.002, 0.005):
        load.worked_s += piece_s
        throttle()

    assert load.rests == pytest.approx([0.004, 0.01])


def test_nobody_rests_for_long() -> None:
    load = Load()
    throttle = load.throttle()

    throttle.begin()
    load.worked_s += 60.0
    throttle()

    assert load.rests == [MAX_REST_S]


def test_nobody_rests_where_that_is_not_wanted() -> None:
    load, batches = Load(), list[str]()
    throttle = load.throttle(lambda: bool(batches))

    throttle.begin()
    load.worked_s += 1.0
    throttle()
    batches.append("one")
    load.worked_s += 0.005
    throttle()

    assert load.rests == pytest.approx([0.01])


def test_what_a_thread_did_before_a_load_is_no_part_of_it() -> None:
    load = Load(worked_s=100.0)
    throttle = load.throttle()

    throttle()
    load.worked_s += 50.0
    throttle.begin()
    load.worked_s += 0.005
    throttle()

    assert load.rests == pytest.approx([0.01])


def test_threads_rest_for_their_own_work() -> None:
    rests = dict[str, float]()
    worked = {"first": 1.0, "second": 0.0}

    def name() -> str:
        return threading.current_thread().name

    throttle = LoadThrottle(
        lambda: True,
        rest=lambda seconds: rests.__setitem__(name(), seconds),
        worked=lambda: worked[name()],
    )

    both_have_begun = threading.Barrier(2, timeout=10)

    def load(seconds: float) -> None:
        throttle.begin()
        both_have_begun.wait()
        worked[name()] += seconds
        throttle()

    threads = [
        threading.Thread(target=load, args=(seconds,), name=thread)
        for thread, seconds in (("first", 0.001), ("second", 0.002))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert rests == pytest.approx({"first": 0.002, "second": 0.004})
