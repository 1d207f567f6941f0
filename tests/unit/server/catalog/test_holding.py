import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from nunatak_registry import StoreUnavailableError
from nunatak_server.catalog.holding import HOLD_S, RENEWAL_S, RETRY_S, VersionHolding

Versions = Collection[tuple[str, int]]
A, B = ("a", 1), ("b", 2)


@dataclass
class Script:
    """What is resident at each turn, a clock that moves between them, and the holds taken."""

    turns: Sequence[Versions]
    seconds_per_turn: float = 1.0
    refusals: int = 0
    turn: int = 0
    taken: list[tuple[int, set[tuple[str, int]]]] = field(
        default_factory=list[tuple[int, set[tuple[str, int]]]]
    )

    def resident(self) -> Versions:
        return self.turns[self.turn]

    def clock(self) -> float:
        return self.turn * self.seconds_per_turn

    async def hold(self, versions: Versions, *, seconds: float) -> None:
        if self.refusals:
            self.refusals -= 1
            raise StoreUnavailableError("read-only")
        assert seconds == HOLD_S
        self.taken.append((self.turn, set(versions)))

    async def pause(self, seconds: float) -> None:
        self.turn += 1
        if self.turn == len(self.turns):
            raise asyncio.CancelledError


def run(script: Script, *, release: bool = False) -> list[tuple[int, set[tuple[str, int]]]]:
    holding = VersionHolding(
        resident=script.resident,
        hold=script.hold,
        interval_s=0.1,
        clock=script.clock,
        pause=script.pause,
    )

    async def scenario() -> None:
        following = asyncio.create_task(holding.run())
        await asyncio.wait([following])
        assert following.cancelled()
        if release:
            await holding.release()

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


def test_end_of_the_process_lets_go() -> None:
    assert run(Script(turns=[[A]]), release=True) == [(0, {A}), (1, set())]


def test_process_that_held_nothing_writes_nothing() -> None:
    assert run(Script(turns=[[], []]), release=True) == []
