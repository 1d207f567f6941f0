import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pytest

from doubles.leases import until
from nunatak_registry import StoreUnavailableError
from nunatak_server.catalog.following import HOLD_S, RENEWAL_S, RETRY_S, HoldRenewal

Versions = Collection[tuple[str, int]]
A, B = ("a", 1), ("b", 2)


@dataclass
class Script:
    """The resident versions of each turn, a clock that moves between turns, and the taken holds."""

    turns: Sequence[Versions]
    seconds_per_turn: float = 1.0
    refusals: int = 0
    lost_at: int | None = None
    """The turn before which a restore takes the holds."""
    unnamed: Versions = ()
    """The versions that the registry lacks."""
    turn: int = 0
    index: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    taken: list[tuple[int, set[tuple[str, int]]]] = field(
        default_factory=list[tuple[int, set[tuple[str, int]]]]
    )
    over: list[bool] = field(default_factory=list[bool])

    def resident(self) -> Versions:
        return self.turns[self.turn]

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

    def __post_init__(self) -> None:
        self.holding = HoldRenewal(
            resident=self.resident,
            hold=lambda versions, seconds: self.hold(versions, seconds=seconds),
            held=self.held,
            interval_s=0.1,
            clock=self.clock,
            pause=self.pause,
        )


def run(script: Script, *, release: bool = False) -> list[tuple[int, set[tuple[str, int]]]]:
    async def scenario() -> None:
        following = asyncio.create_task(script.holding.run())
        await asyncio.wait([following])
        assert following.cancelled()
        if release:
            await script.holding.release()

    asyncio.run(scenario())
    return script.taken


def test_what_is_loaded_is_held_and_what_is_evicted_let_go() -> None:
    assert run(Script(turns=[[], [A], [A], [A, B], [B], []])) == [
        (1, {A}),
        (3, {A, B}),
        (4, {B}),
        (5, set()),
    ]


def test_hold_is_renewed_well_before_it_ends() -> None:
    taken = run(Script(turns=[[A]] * 9, seconds_per_turn=RENEWAL_S / 2))

    assert [turn for turn, _ in taken] == [0, 2, 4, 6, 8]
    assert RENEWAL_S < HOLD_S / 2


def test_refused_hold_is_tried_again_after_a_while() -> None:
    script = Script(turns=[[A]] * 6, seconds_per_turn=RETRY_S / 2, refusals=2)

    assert run(script) == [(4, {A})]


def test_holds_that_a_restore_took_are_written_again_at_once() -> None:
    assert run(Script(turns=[[A]] * 6, lost_at=3)) == [(0, {A}), (3, {A})]


def test_a_change_ends_the_wait_after_a_refusal() -> None:
    script = Script(turns=[[A]] * 6, seconds_per_turn=RETRY_S / 10, refusals=1, lost_at=2)

    assert run(script) == [(2, {A})]


def test_a_version_that_the_registry_does_not_name_is_not_asked_for_with_each_turn() -> None:
    assert run(Script(turns=[[A, B]] * 6, unnamed=[B])) == [(0, {A, B})]


def test_holds_that_have_run_out_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    turns_per_hold = 4
    script = Script(
        turns=[[A]] + [[A, B]] * 11, seconds_per_turn=HOLD_S / turns_per_hold, refusals=0
    )

    async def refuse_from_the_second(versions: Versions, *, seconds: float) -> set[tuple[str, int]]:
        if script.turn in range(1, 9):
            raise StoreUnavailableError("read-only")
        return await Script.hold(script, versions, seconds=seconds)

    script.hold = refuse_from_the_second  # type: ignore[method-assign]
    run(script)

    assert script.over == [False] * turns_per_hold + [True] * 5 + [False] * 3
    assert caplog.text.count("the registry takes no holds") == 1
    assert caplog.text.count("the holds have expired") == 1


async def test_the_wait_between_two_turns_ends_when_the_registry_changes() -> None:
    script = Script(turns=[[A]])
    holding = HoldRenewal(
        resident=script.resident,
        hold=lambda versions, seconds: script.hold(versions, seconds=seconds),
        held=script.held,
        interval_s=3600,
    )

    following = asyncio.create_task(holding.run())
    await until(lambda: len(script.taken) == 1)
    script.index.clear()
    holding.look()
    await until(lambda: len(script.taken) == 2)
    following.cancel()
    await asyncio.wait([following])


def test_end_of_the_process_lets_go() -> None:
    assert run(Script(turns=[[A]]), release=True) == [(0, {A}), (1, set())]


def test_process_that_held_nothing_writes_nothing() -> None:
    assert run(Script(turns=[[], []]), release=True) == []
