import asyncio
import errno

import pytest

from doubles.serving import ManualClock
from nunatak_registry import Generation, StoreUnavailableError
from nunatak_server.catalog.following import ALONE_S, TOGETHER_S, Membership, RegistryLease

SEEN = Generation(number=7, token="seven")  # noqa: S106 - no password
LEASE_S = 10.0


class Script:
    """A registry whose beats take time, or are refused, and a clock that moves with them."""

    def __init__(self, *, lease_s: float | None = LEASE_S, num_others: int = 0) -> None:
        self.clock = ManualClock()
        self.beat_takes_s = 0.0
        self.is_down = False
        self.error: Exception = StoreUnavailableError("the index is gone")
        self.num_others = num_others
        self.returns: list[bool] = []
        self.pauses: list[float] = []
        self.events: list[str] = []
        self.lease = None if lease_s is None else RegistryLease(seconds=lease_s, clock=self.clock)
        self.membership = Membership(
            beat=self.beat,
            leave=self.leave,
            lease=self.lease,
            on_return=lambda: self.returns.append(self.is_over),
            pause=self.pause,
        )
        self.membership.see(SEEN)

    @property
    def is_over(self) -> bool:
        return self.lease is not None and self.lease.is_over

    async def beat(self, seen: Generation) -> int:
        assert seen == SEEN
        self.clock.now += self.beat_takes_s
        if self.is_down:
            raise self.error
        self.events.append("beat")
        return self.num_others

    async def leave(self) -> None:
        self.events.append("leave")

    async def pause(self, event: asyncio.Event, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) > 1:
            raise asyncio.CancelledError


def beat(script: Script) -> None:
    asyncio.run(script.membership.beat())


def test_a_lease_counts_from_the_start_of_the_beat() -> None:
    script = Script()
    assert script.is_over
    script.beat_takes_s = 4.0

    beat(script)

    script.clock.now = LEASE_S - 0.1
    assert not script.is_over
    script.clock.now = LEASE_S
    assert script.is_over


def test_a_beat_that_takes_longer_than_the_lease_gives_none() -> None:
    script = Script()
    script.beat_takes_s = LEASE_S

    beat(script)

    assert script.is_over


def test_refused_beats_let_the_lease_end() -> None:
    script = Script()
    beat(script)
    script.is_down = True

    script.clock.now = LEASE_S / 2
    beat(script)
    assert not script.is_over

    script.clock.now = LEASE_S
    assert script.is_over


def test_a_beat_without_free_descriptors_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    script = Script()
    beat(script)
    script.is_down, script.error = True, OSError(errno.EMFILE, "Too many open files")

    beat(script)
    beat(script)

    assert not script.is_over
    assert caplog.text.count("Traceback") == 1
    script.clock.now = LEASE_S
    assert script.is_over


def test_what_was_read_before_a_lapse_is_forgotten_before_the_next_answer() -> None:
    script = Script()
    beat(script)
    beat(script)
    assert script.returns == [True], "only the first beat had no lease before it"

    script.clock.now = LEASE_S + 1
    beat(script)

    assert script.returns == [True, True]
    assert not script.is_over


def test_a_process_without_a_lease_answers_on_while_the_registry_is_gone() -> None:
    script = Script(lease_s=None)
    script.is_down = True

    beat(script)

    assert not script.is_over
    assert script.returns == []


@pytest.mark.parametrize(
    ("lease_s", "num_others", "interval_s"),
    [(None, 0, ALONE_S), (None, 1, TOGETHER_S), (LEASE_S, 0, LEASE_S / 5), (LEASE_S, 3, 2.0)],
)
def test_a_process_alone_writes_rarely(
    lease_s: float | None, num_others: int, interval_s: float
) -> None:
    script = Script(lease_s=lease_s, num_others=num_others)

    async def scenario() -> None:
        running = asyncio.create_task(script.membership.run())
        await asyncio.wait([running])
        assert running.cancelled()

    asyncio.run(scenario())

    assert script.events == ["beat"]
    assert script.pauses[-1] == interval_s


def test_a_process_leaves_after_its_last_beat() -> None:
    script = Script()
    may_end = asyncio.Event()

    async def slow_beat(seen: Generation) -> int:
        assert seen == SEEN
        await may_end.wait()
        script.events.append("beat")
        return 0

    script.beat = slow_beat

    async def scenario() -> None:
        beating = asyncio.create_task(script.membership.beat())
        await asyncio.sleep(0)
        beating.cancel()
        leaving = asyncio.create_task(script.membership.leave())
        await asyncio.sleep(0)
        may_end.set()
        await leaving

    asyncio.run(scenario())

    assert script.events == ["beat", "leave"]
