"""How a process follows its registry: its watch of changes, its holds, and its beats."""

import asyncio
import errno
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from doubles.leases import until
from doubles.serving import ManualClock
from nunatak_registry import Generation, StoreUnavailableError
from nunatak_server.catalog import following
from nunatak_server.catalog.following import (
    ALONE_S,
    HOLD_S,
    RETRY_S,
    TOGETHER_S,
    HoldRenewal,
    Membership,
    RegistryLease,
    RegistryWatch,
)

Turn = tuple[int, str] | None
"""A number and a token; None if the registry cannot be read."""
Versions = Collection[tuple[str, int]]
A, B = ("a", 1), ("b", 2)
SEEN = Generation(number=7, token="seven")  # noqa: S106 - no password
LEASE_S = 10.0


class WatchScript:
    """Gives one generation per poll; ends the watch after the last."""

    def __init__(self, turns: list[Turn], *, refused: Collection[int] = ()) -> None:
        self.refused = refused
        """Polls whose changes cannot be applied."""
        self._turns: Iterator[Turn] = iter(turns)
        self.changes: list[int] = []
        self.restores: list[int] = []
        self.readable: list[bool] = []
        self.num_polls = 0
        self.watch = RegistryWatch(
            generation=self.generation,
            on_change=self.on_change,
            on_restore=self.on_restore,
            interval_s=0.1,
            pause=self.pause,
        )

    async def generation(self) -> Generation:
        try:
            turn = next(self._turns)
        except StopIteration:
            raise asyncio.CancelledError from None
        self.num_polls += 1
        if turn is None:
            raise StoreUnavailableError("the index is gone")
        if turn[0] < 0:
            raise OSError(errno.EMFILE, "Too many open files")
        return Generation(number=turn[0], token=turn[1])

    async def on_change(self, _: Generation) -> None:
        if self.num_polls in self.refused:
            raise StoreUnavailableError("the index is locked")
        self.changes.append(self.num_polls)

    async def on_restore(self) -> None:
        assert self.changes[-1] == self.num_polls, "a change is told first"
        self.restores.append(self.num_polls)

    async def pause(self, seconds: float) -> None:
        assert seconds == 0.1
        self.readable.append(self.watch.is_readable)


def follow(turns: list[Turn], *, refused: Collection[int] = ()) -> WatchScript:
    script = WatchScript(turns, refused=refused)
    to_its_end(script.watch.run)
    return script


@dataclass
class HoldScript:
    """The resident versions of each turn, a clock that moves between turns, and the taken holds."""

    turns: Sequence[Versions]
    seconds_per_turn: float = 1.0
    refusals: int = 0
    lost_at: int | None = None
    """The turn before which a restore takes the holds."""
    unnamed: Versions = ()
    """The versions that the registry lacks."""

    def __post_init__(self) -> None:
        self.turn = 0
        self.index = set[tuple[str, int]]()
        self.taken = list[tuple[int, set[tuple[str, int]]]]()
        self.over = list[bool]()
        self.holding = self.holding_of(interval_s=0.1, clock=self.clock, pause=self.pause)

    def holding_of(self, **times: Any) -> HoldRenewal:  # noqa: ANN401 - as of the renewal
        return HoldRenewal(
            resident=lambda: self.turns[self.turn],
            hold=lambda versions, seconds: self.hold(versions, seconds=seconds),
            held=self.held,
            **times,
        )

    def clock(self) -> float:
        return self.turn * self.seconds_per_turn

    async def hold(self, versions: Versions, *, seconds: float) -> set[tuple[str, int]]:
        if self.refusals:
            self.refusals -= 1
            raise StoreUnavailableError("read-only")
        assert seconds == HOLD_S
        self.taken.append((self.turn, set(versions)))
        self.index = set(versions).difference(self.unnamed)
        return set(self.index)

    async def held(self) -> set[tuple[str, int]]:
        return set(self.index)

    async def pause(self, event: asyncio.Event, seconds: float) -> None:
        assert seconds == 0.1
        self.over.append(self.holding.is_over)
        self.turn += 1
        if self.turn == self.lost_at:
            self.index.clear()
            self.holding.look()
            assert event.is_set()
        if self.turn == len(self.turns):
            raise asyncio.CancelledError


Work = Callable[[], Coroutine[Any, Any, None]]


def to_its_end(work: Work, *then: Work) -> None:
    """Run what its script ends by cancelling it, and then other work."""

    async def scenario() -> None:
        running = asyncio.create_task(work())
        await asyncio.wait([running])
        assert running.cancelled()
        for it in then:
            await it()

    asyncio.run(scenario())


def run(script: HoldScript, *, release: bool = False) -> list[tuple[int, set[tuple[str, int]]]]:
    to_its_end(script.holding.run, *[script.holding.release] * release)
    return script.taken


class BeatScript:
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


def beat(script: BeatScript) -> None:
    asyncio.run(script.membership.beat())


def test_each_change_is_reported_once() -> None:
    found = follow([(7, "a"), (7, "a"), (8, "b"), (8, "b"), (8, "b"), (9, "c")])

    assert found.changes == [1, 3, 6]
    assert found.restores == []


def test_a_registry_that_cannot_be_read_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    found = follow([(7, "a"), None, None, (7, "a"), (8, "b")])

    assert [it.getMessage() for it in caplog.records] == [
        "the registry cannot be read, serving the known versions: the index is gone",
        "the registry can be read again",
    ]

    assert found.changes == [1, 5]
    assert found.readable == [True, False, False, True, True]


async def test_a_poll_that_gets_no_answer_is_a_registry_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "PATIENCE_S", 0.01)
    script, gate = WatchScript([(7, "a")]), asyncio.Event()

    async def late() -> Generation:
        await gate.wait()
        return await script.generation()

    monkeypatch.setattr(script.watch, "_generation", late)
    watching = asyncio.create_task(script.watch.run())
    await until(lambda: not script.watch.is_readable)
    gate.set()
    await asyncio.wait([watching])

    assert script.readable == [True]


@pytest.mark.parametrize(
    ("turns", "refused", "num_logged"),
    [
        ([(7, "a"), (8, "b"), (8, "b"), (8, "b")], {2, 3}, 0),
        ([(7, "a"), (-1, ""), (-1, ""), (8, "b")], {}, 1),
    ],
    ids=["change-that-cannot-be-applied", "poll-without-free-descriptors"],
)
def test_what_fails_in_a_turn_is_done_in_a_later_one(
    turns: list[Turn], refused: Collection[int], num_logged: int, caplog: pytest.LogCaptureFixture
) -> None:
    found = follow(turns, refused=refused)

    assert found.changes == [1, 4]
    assert found.readable == [True, False, False, True]
    assert caplog.text.count("Traceback") == num_logged


@pytest.mark.parametrize("second", [(7, "a"), (9, "x")], ids=["went-back", "other-changes"])
def test_a_generation_whose_number_has_not_grown_is_a_restore(
    second: Turn, caplog: pytest.LogCaptureFixture
) -> None:
    found = follow([(9, "c"), second, second, (10, "d")])

    assert found.changes == [1, 2, 4]
    assert found.restores == [2]
    assert second is not None
    assert f"was restored: its generation was 9 and is now {second[0]}" in caplog.text


HOLDS = {
    "what-is-loaded-and-no-more": (
        HoldScript(turns=[[], [A], [A], [A, B], [B], []]),
        [(1, {A}), (3, {A, B}), (4, {B}), (5, set())],
    ),
    "renewed-well-before-the-end": (
        HoldScript(turns=[[A]] * 9, seconds_per_turn=HOLD_S / 6),
        [(turn, {A}) for turn in (0, 2, 4, 6, 8)],
    ),
    "again-a-while-after-a-refusal": (
        HoldScript(turns=[[A]] * 6, seconds_per_turn=RETRY_S / 2, refusals=2),
        [(4, {A})],
    ),
    "again-at-once-after-a-restore": (HoldScript(turns=[[A]] * 6, lost_at=3), [(0, {A}), (3, {A})]),
    "a-change-ends-the-wait-after-a-refusal": (
        HoldScript(turns=[[A]] * 6, seconds_per_turn=RETRY_S / 10, refusals=1, lost_at=2),
        [(2, {A})],
    ),
    "a-version-that-the-registry-lacks-is-asked-for-once": (
        HoldScript(turns=[[A, B]] * 6, unnamed=[B]),
        [(0, {A, B})],
    ),
}


@pytest.mark.parametrize(("script", "taken"), HOLDS.values(), ids=HOLDS)
def test_versions_in_memory_are_held(
    script: HoldScript, taken: list[tuple[int, set[tuple[str, int]]]]
) -> None:
    assert run(script) == taken


def test_holds_that_have_run_out_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    turns_per_hold = 4
    script = HoldScript(
        turns=[[A]] + [[A, B]] * 11, seconds_per_turn=HOLD_S / turns_per_hold, refusals=0
    )

    async def refuse_from_the_second(versions: Versions, *, seconds: float) -> set[tuple[str, int]]:
        if script.turn in range(1, 9):
            raise StoreUnavailableError("read-only")
        return await HoldScript.hold(script, versions, seconds=seconds)

    script.hold = refuse_from_the_second  # pyrefly: ignore[method-assign]
    run(script)

    assert script.over == [False] * turns_per_hold + [True] * 5 + [False] * 3
    assert caplog.text.count("the registry takes no holds") == 1
    assert caplog.text.count("the holds have expired") == 1


async def test_the_wait_between_two_turns_ends_when_the_registry_changes() -> None:
    script = HoldScript(turns=[[A]])
    holding = script.holding_of(interval_s=3600)

    following = asyncio.create_task(holding.run())
    await until(lambda: len(script.taken) == 1)
    script.index.clear()
    holding.look()
    await until(lambda: len(script.taken) == 2)
    following.cancel()
    await asyncio.wait([following])


def test_end_of_the_process_lets_go_of_what_it_held() -> None:
    assert run(HoldScript(turns=[[A]]), release=True) == [(0, {A}), (1, set())]
    assert run(HoldScript(turns=[[], []]), release=True) == []


def test_a_lease_counts_from_the_start_of_the_beat_also_if_that_takes_longer() -> None:
    script, late = BeatScript(), BeatScript()
    assert script.is_over
    script.beat_takes_s, late.beat_takes_s = 4.0, LEASE_S

    beat(script)
    beat(late)

    assert late.is_over
    script.clock.now = LEASE_S - 0.1
    assert not script.is_over
    script.clock.now = LEASE_S
    assert script.is_over


@pytest.mark.parametrize(
    ("error", "num_traces"),
    [
        (StoreUnavailableError("the index is gone"), 0),
        (OSError(errno.EMFILE, "Too many open files"), 1),
    ],
)
def test_refused_beats_let_the_lease_end_and_end_nothing_before(
    error: Exception, num_traces: int, caplog: pytest.LogCaptureFixture
) -> None:
    script = BeatScript()
    beat(script)
    script.is_down, script.error = True, error

    script.clock.now = LEASE_S / 2
    beat(script)
    beat(script)

    assert not script.is_over
    assert caplog.text.count("Traceback") == num_traces
    script.clock.now = LEASE_S
    assert script.is_over


def test_what_was_read_before_a_lapse_is_forgotten_before_the_next_answer() -> None:
    script = BeatScript()
    beat(script)
    beat(script)
    assert script.returns == [True], "only the first beat had no lease before it"

    script.clock.now = LEASE_S + 1
    beat(script)

    assert script.returns == [True, True]
    assert not script.is_over


def test_a_process_without_a_lease_answers_on_while_the_registry_is_gone() -> None:
    script = BeatScript(lease_s=None)
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
    script = BeatScript(lease_s=lease_s, num_others=num_others)

    to_its_end(script.membership.run)

    assert script.events == ["beat"]
    assert script.pauses[-1] == interval_s


def test_a_process_leaves_after_its_last_beat() -> None:
    script = BeatScript()
    may_end = asyncio.Event()

    async def slow_beat(seen: Generation) -> int:
        assert seen == SEEN
        await may_end.wait()
        script.events.append("beat")
        return 0

    script.beat = slow_beat  # pyrefly: ignore[method-assign]

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
