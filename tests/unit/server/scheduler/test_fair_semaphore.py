"""Turns at few slots: one request of each caller, for any number of requests of one caller."""

import asyncio
import itertools

import pytest

from doubles.leases import settle
from nunatak_server.scheduler.turns import FairSemaphore


class Track:
    """Takes slots, and remembers the callers that had one."""

    def __init__(self, *, num_slots: int = 1) -> None:
        self.semaphore = FairSemaphore(num_slots=num_slots)
        self.began: list[str] = []
        self.may_end = asyncio.Event()

    async def pass_through(self, caller: str, *, num_turns: int = 1) -> None:
        for _ in range(num_turns):
            async with self.semaphore.slot(caller):
                self.began.append(caller)
                await self.may_end.wait()
                await asyncio.sleep(0)


async def test_who_comes_waits_for_one_turn_of_each_other_caller_at_most() -> None:
    async def scenario() -> None:
        track = Track()
        loud = [
            asyncio.create_task(track.pass_through(caller, num_turns=5))
            for caller in ("a", "b")
            for _ in range(3)
        ]
        await settle()
        quiet = asyncio.create_task(track.pass_through("quiet"))
        await settle()

        track.may_end.set()
        await asyncio.gather(quiet, *loud)

        assert track.began.index("quiet") <= 2
        assert sorted(track.began) == sorted(["quiet", *"ab" * 15])

    await scenario()


@pytest.mark.parametrize("num_slots", [1, 2])
async def test_callers_that_stay_take_turns(num_slots: int) -> None:
    async def scenario() -> None:
        track = Track(num_slots=num_slots)
        track.may_end.set()
        many = [track.pass_through("many", num_turns=4) for _ in range(10)]

        await asyncio.gather(*many, track.pass_through("few", num_turns=10))

        positions = [index for index, caller in enumerate(track.began) if caller == "few"]
        gaps = [after - before for before, after in itertools.pairwise(positions)]
        assert max(gaps) <= 1 + num_slots

    await scenario()


async def test_requests_of_one_caller_take_turns_as_well() -> None:
    async def scenario() -> None:
        track, ended = Track(), list[str]()

        async def ask(name: str, num_turns: int) -> None:
            await track.pass_through("one", num_turns=num_turns)
            ended.append(name)

        asking = [asyncio.create_task(ask(name, n)) for name, n in (("long", 9), ("short", 1))]
        await settle()
        track.may_end.set()
        await asyncio.gather(*asking)

        assert ended == ["short", "long"]

    await scenario()


async def test_as_many_go_on_at_once_as_there_are_places() -> None:
    async def scenario() -> None:
        track = Track(num_slots=2)
        asking = [asyncio.create_task(track.pass_through("a")) for _ in range(3)]
        await settle()
        assert len(track.began) == 2

        track.may_end.set()
        await asyncio.gather(*asking)
        assert len(track.began) == 3

    await scenario()


async def test_who_gives_up_leaves_its_turn_to_the_next() -> None:
    async def scenario() -> None:
        track = Track()
        inside, granted, waiting, last = (
            asyncio.create_task(track.pass_through(caller)) for caller in "abcd"
        )
        await settle()
        waiting.cancel()
        # `granted` gets its slot in the same turn of the loop in which it is cancelled.
        inside.cancel()
        await asyncio.sleep(0)
        granted.cancel()
        await settle()

        assert track.began == ["a", "d"]
        track.may_end.set()
        await last
        async with asyncio.timeout(1), track.semaphore.slot("anybody"):
            pass

    await scenario()
