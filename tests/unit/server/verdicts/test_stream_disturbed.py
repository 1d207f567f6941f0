"""Streams of verdicts when something fails, is late, or comes slowly: held, or decided."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing, suppress
from typing import Any

import pytest

from doubles.leases import until
from doubles.policies import UNREAD_PASSES, make_policy, make_rule, when
from doubles.refusals import raises
from doubles.streams import (
    LOOPS,
    TASKS,
    Outcome,
    Said,
    StreamBench,
    by_word,
    essence,
    guard,
    harmless,
)
from doubles.trained_tokenizers import TokenizerFamily
from nunatak_contract.enums import Combine, OnFailure, PolicyMode, VerdictAction
from nunatak_server.predict.growing import Growing
from nunatak_server.scheduler.admission import State
from nunatak_server.tokenization import Encodings, Reading
from nunatak_server.verdicts.judge import Judgement
from nunatak_server.verdicts.stream import Released

ALLOW, MASK, BLOCK = VerdictAction.ALLOW, VerdictAction.MASK, VerdictAction.BLOCK
BERT = TokenizerFamily.BERT


@pytest.mark.parametrize("on_failure", OnFailure)
async def test_a_task_without_answers_holds_the_text_or_lets_it_pass_by_on_failure(
    on_failure: OnFailure,
) -> None:
    bench = StreamBench(BERT, guard(on_failure))
    text = harmless(bench)
    bench.engine.sick = frozenset({"tone"})

    found = await bench.streamed(by_word(text))

    assert (found.final.action.value, found.final.is_by_failure) == (on_failure.value, True)
    assert found.text == ("" if on_failure is OnFailure.BLOCK else text)


@pytest.mark.parametrize("on_failure", OnFailure)
async def test_a_hold_that_is_too_long_decides_by_on_failure(on_failure: OnFailure) -> None:
    bench = StreamBench(BERT, guard(on_failure, max_delay_ms=1000))
    text = harmless(bench, num_words=6)

    async def slow() -> AsyncGenerator[str]:
        said = Said(bench.admission)
        yield text + " and"
        await said.settle()
        bench.clock.now = 2.0
        yield " more"
        await said.settle()
        yield " of it"

    found = await bench.streamed(slow())
    if on_failure is OnFailure.BLOCK:
        assert (found.text, found.final.action, found.final.is_by_failure) == ("", BLOCK, True)
    else:
        assert isinstance(found.events[0], Released)
        assert found.events[0].text.startswith(text)
        assert essence(found.final) == essence(await bench.whole(f"{text} and more of it"))


async def test_a_hold_ends_in_time_also_if_text_comes_faster_than_judgements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = StreamBench(BERT, guard(max_delay_ms=3000))
    chunks, ask = by_word(harmless(bench, num_words=300)), bench.judge.ask
    may_come, num_taken = asyncio.Semaphore(20), 0
    bench.engine.sick = frozenset({"tone"})

    async def slow(*arguments: Any, **options: Any) -> Judgement:  # noqa: ANN401 - of the judge
        bench.clock.now += 1
        for _ in range(20):
            may_come.release()
            await asyncio.sleep(0)
        return await ask(*arguments, **options)

    async def arriving() -> AsyncGenerator[str]:
        nonlocal num_taken
        for chunk in chunks:
            await may_come.acquire()
            num_taken += 1
            yield chunk

    monkeypatch.setattr(bench.judge, "ask", slow)
    found = await bench.streamed(arriving())

    assert (found.text, found.final.action, found.final.is_by_failure) == ("", BLOCK, True)
    assert num_taken < len(chunks) / 2


async def test_a_caller_that_goes_withdraws_its_rows() -> None:
    bench = StreamBench(BERT, guard())
    text = harmless(bench)
    bench.engine.rows.clear()
    bench.engine.answers_at_once = False
    reading = asyncio.create_task(bench.streamed([text, " ", "and"]))
    await until(lambda: bool(bench.engine.rows))

    reading.cancel()
    with suppress(asyncio.CancelledError):
        await reading

    assert bench.admission.requests.total == 0
    assert all(row.is_cancelled for row in bench.engine.withdrawn)
    assert len(bench.engine.withdrawn) == len(bench.engine.rows)


@pytest.mark.parametrize("disturbance", ["failure", "full queue"])
async def test_what_is_found_stays_masked_if_its_task_then_fails(disturbance: str) -> None:
    rule = make_rule(when("names", "X"), name="names", action=MASK)
    fields = {"max_delay_ms": 1000, "unjudged": UNREAD_PASSES}
    bench = StreamBench(BERT, make_policy(rule, on_failure=OnFailure.ALLOW, **fields))
    words, judged = by_word(harmless(bench)), set[int]()
    bench.engine.finds_names = True
    said = Said(bench.admission)

    async def chunks() -> AsyncGenerator[str]:
        async for chunk in said.recorded(words[:30]):
            yield chunk
        for task, encoding in bench.engine.computed:
            if task == "names" and encoding.alignment is not None:
                judged.update(end for _, end in encoding.alignment.offsets)
        if disturbance == "failure":
            bench.engine.sick = frozenset({"names"})
        with ExitStack() as others:
            for other in range(10 * (disturbance != "failure")):
                others.enter_context(bench.admission.admit(f"other-{other}"))
            bench.clock.now += 2
            yield "and more"
            for _ in range(LOOPS):
                await asyncio.sleep(0)
        bench.engine.sick = frozenset({"names"})

    found = await bench.streamed(chunks())

    num_judged = len("".join(words[:30])[: max(judged)].split())
    assert num_judged > len(TASKS)
    assert found.text.split()[:num_judged] == ["[X]"] * num_judged
    assert "[X]" not in found.text.split()[num_judged:]
    (decision,) = found.final.decisions
    assert (found.final.action, found.final.is_by_failure) == (MASK, True)
    assert decision.masked == found.text


async def test_a_dry_run_holds_no_text_for_a_task_that_fails() -> None:
    bench = StreamBench(BERT, guard(mode=PolicyMode.DRY_RUN))
    text = harmless(bench)
    bench.engine.sick = frozenset({"tone"})
    said, released = Said(bench.admission), 0
    async with aclosing(bench.stream().events(said.recorded(by_word(text)))) as events:
        async for event in events:
            if isinstance(event, Released) and len(said.arrived) < len(text):
                released += len(event.text)

    assert released > len(text) / 2


async def test_text_is_held_if_a_version_cannot_answer_a_condition() -> None:
    conditions = when("attack", "maybe"), when("tone", "sharp")
    bench = StreamBench(BERT, make_policy(make_rule(*conditions, combine=Combine.ALL)))
    text = harmless(bench)
    tones = await bench.windows(text, "tone")
    bench.engine.denied = {("tone", tones[len(tones) // 2])}

    found = await bench.streamed(by_word(text))

    assert (found.text, found.final.action, found.final.is_by_failure) == ("", BLOCK, True)


async def test_a_look_up_that_hangs_does_not_silence_the_other_tasks() -> None:
    rules = make_rule(when("attack", "yes"), name="a"), make_rule(when("tone/1", "sharp"), name="t")
    bench = StreamBench(BERT, make_policy(rules[0], unjudged=UNREAD_PASSES))
    text = harmless(bench)
    bench.engine.denied = {("attack", (await bench.windows(text, "attack"))[1])}
    fields = {"deadline_ms": 600, "unjudged": UNREAD_PASSES}
    bench.policy = make_policy(*rules, on_failure=OnFailure.ALLOW, **fields)
    bench.store.may_resolve.clear()

    found = await bench.streamed([text[:200], text[200:]])

    assert (found.final.action, found.final.is_by_failure) == (BLOCK, False)


async def test_a_slow_text_with_a_bounded_hold_keeps_few_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = StreamBench(BERT, guard(OnFailure.ALLOW, max_delay_ms=500))
    text, held = harmless(bench, num_words=150), list[int]()
    take = Growing.take

    def taken(self: Growing, reading: Reading, windows: Encodings, *, begin: int) -> Encodings:
        found = take(self, reading, windows, begin=begin)
        held.append(len(found))
        return found

    monkeypatch.setattr(Growing, "take", taken)
    said = Said(bench.admission)

    async def chunks() -> AsyncGenerator[str]:
        async for chunk in said.recorded(by_word(text)):
            yield chunk
            bench.clock.now += 1

    assert (await bench.streamed(chunks())).text == text
    assert max(held) < 8


async def test_time_alone_asks_nothing_again() -> None:
    bench = StreamBench(BERT, guard(OnFailure.ALLOW, max_delay_ms=1000))
    harmless(bench)

    async def chunks() -> AsyncGenerator[str]:
        yield "the report was written "
        yield "by ad"
        bench.clock.now += 100
        yield "a"
        for _ in range(100):
            await asyncio.sleep(0.002)

    await bench.streamed(chunks())

    # One look after the hold, and the whole text.
    assert len(bench.engine.computed) <= 2 * len(TASKS)


@pytest.mark.parametrize("version", [2, 1], ids=["promoted", "restored"])
async def test_a_version_that_finds_something_in_released_text_blocks(version: int) -> None:
    bench = StreamBench(BERT, guard())
    text = harmless(bench)
    said = Said(bench.admission)
    events = bench.stream().events(said.recorded(by_word(text)))
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Released):
                break
        bench.engine.finds_names = True
        bench.publish("names", version, seed=2)
        bench.bench.facts.invalidate()
        rest = Outcome(events=[event async for event in events])

    assert (rest.final.action, rest.final.is_by_failure) == (BLOCK, True)


@pytest.mark.parametrize("disturbance", ["nothing", "failure", "long hold"])
async def test_findings_of_two_tasks_meet_also_after_a_disturbance(disturbance: str) -> None:
    conditions = when("attack", "yes"), when("tone", "sharp")
    both = make_rule(*conditions, name="both", combine=Combine.ALL)
    is_long = disturbance == "long hold"
    policy = make_policy(both, unjudged=UNREAD_PASSES)
    if is_long:
        changes = {"max_delay_ms": 1000, "on_failure": OnFailure.ALLOW}
        policy = policy.model_copy(update=changes)
    bench = StreamBench(BERT, policy)
    text = harmless(bench, num_words=200)
    attacks, tones = [await bench.windows(text, it) for it in ("attack", "tone")]
    bench.engine.denied = {("attack", attacks[1]), ("tone", tones[len(tones) // 2])}
    said = Said(bench.admission)

    async def chunks() -> AsyncGenerator[str]:
        words = by_word(text)
        bench.engine.sick = frozenset({"attack"} if disturbance == "failure" else ())
        for number, chunk in enumerate(["".join(words[:60]), *words[60:]]):
            said.arrived += chunk
            yield chunk
            if number == 0 and is_long:
                bench.clock.now += 2
            await said.settle()
            if number == 3:
                bench.engine.sick = frozenset()

    found = await bench.streamed(chunks())

    assert (found.final.action, found.final.is_by_failure) == (BLOCK, False)
    assert len(said.arrived) < len(text) * 0.7


async def test_a_full_queue_holds_the_text_and_loses_nothing() -> None:
    bench = StreamBench(BERT, guard())
    text = harmless(bench)
    others = ExitStack()

    async def chunks() -> AsyncGenerator[str]:
        for number, chunk in enumerate(by_word(text)):
            if number == 10:
                await Said(bench.admission).settle()
                for other in range(10):
                    others.enter_context(bench.admission.admit(f"other-{other}"))
            if number == 50:
                others.close()
            yield chunk
            for _ in range(LOOPS):
                await asyncio.sleep(0)

    found = await bench.streamed(chunks())

    assert found.text == text


async def test_a_hold_ends_in_time_also_while_the_queue_is_full() -> None:
    bench = StreamBench(BERT, guard(OnFailure.ALLOW, max_delay_ms=1000))
    text, released = harmless(bench, num_words=6), list[str]()

    async def chunks() -> AsyncGenerator[str]:
        with ExitStack() as others:
            for other in range(10):
                others.enter_context(bench.admission.admit(f"other-{other}"))
            yield f"{text} and "
            bench.clock.now = 2.0
            yield "more "
            for _ in range(LOOPS):
                await asyncio.sleep(0)
            released.append("in time")
        yield "of it"

    async with aclosing(bench.stream().events(chunks())) as events:
        async for event in events:
            released += [event.text] if isinstance(event, Released) else []

    assert released == [f"{text} and more", "in time", " of it"]


async def test_a_stream_is_judged_to_its_end_while_the_server_drains() -> None:
    bench = StreamBench(BERT, guard())
    text = harmless(bench)
    said, readiness = Said(bench.admission), bench.bench.readiness
    async with aclosing(bench.stream().events(said.recorded(by_word(text)))) as events:
        found = list[str]()
        async for event in events:
            readiness.move_to(State.DRAINING)
            found += [event.text] if isinstance(event, Released) else []

    assert len(found) > 1
    assert "".join(found) == text
    with raises("draining"):
        await bench.whole(text)
