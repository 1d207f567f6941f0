"""What tasks have answered to policies is known when a text comes again."""

import asyncio
import random
import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from doubles.engines import answer
from doubles.policies import UNREAD_PASSES, make_policy, make_rule, when
from doubles.streams import HANDLING, StreamBench
from doubles.trained_tokenizers import TokenizerFamily
from nunatak_contract.enums import OnFailure
from nunatak_model import Encoding
from nunatak_server.predict.known_rows import BYTES_PER_ANSWER, BYTES_PER_TOKEN, KnownRows
from nunatak_server.predict.types import Handling
from nunatak_server.scheduler.turns import SLICE
from nunatak_server.verdicts.judge import Judgement

CACHE = 2**20
TURNS = tuple(f"the report was {it}" for it in ("ada", "lovelace", "london", "saw", "copy", "it"))
ASKED = {"attack": "yes", "tone": "sharp"}
BERT = TokenizerFamily.BERT


class Conversation:
    """A policy that asks two tasks about the turns of a conversation so far."""

    def __init__(
        self, *, answer_cache_bytes: int = CACHE, on_failure: OnFailure = OnFailure.BLOCK
    ) -> None:
        rules = (make_rule(when(task, label), name=task) for task, label in ASKED.items())
        policy = make_policy(*rules, unjudged=UNREAD_PASSES, on_failure=on_failure)
        self.bench = StreamBench(BERT, policy, answer_cache_bytes=answer_cache_bytes)
        self.bench.engine.is_calm = True

    async def judge(
        self, *texts: str, handling: Handling = HANDLING
    ) -> tuple[Judgement, Counter[str]]:
        """Return the judgement, and the number of rows that each task has computed for it."""
        self.bench.engine.computed.clear()
        name = self.bench.policy.name
        found = await self.bench.judge.judge(name, texts, handling, stops_early=False)
        return found, Counter(task for task, _ in self.bench.engine.computed)


@pytest.mark.parametrize("finds", [False, True])
async def test_each_call_of_a_conversation_computes_its_last_turn_alone(*, finds: bool) -> None:
    known, plain = Conversation(), Conversation(answer_cache_bytes=0)
    if finds:
        windows = await plain.bench.windows(TURNS[2], "attack")
        for it in (known, plain):
            it.bench.engine.denied = {("attack", windows[0])}
    for number in range(1, len(TURNS) + 1):
        found, computed = await known.judge(*TURNS[:number])
        expected, _ = await plain.judge(*TURNS[:number])

        assert found.decisions == expected.decisions
        assert computed == dict.fromkeys(ASKED, 1)
        assert (found.decided == "block") == (finds and number > 2)


async def test_another_caller_and_a_new_version_are_asked_again() -> None:
    talk = Conversation()
    await talk.judge(*TURNS)

    assert (await talk.judge(*TURNS))[1] == {}
    other = replace(HANDLING, caller="another")
    assert (await talk.judge(*TURNS, handling=other))[1] == dict.fromkeys(ASKED, len(TURNS))
    talk.bench.publish("tone", 2, seed=2)
    talk.bench.bench.facts.invalidate()
    assert (await talk.judge(*TURNS))[1] == {"tone": len(TURNS)}


async def test_a_task_that_fails_about_a_new_turn_is_asked_again_and_fails_closed() -> None:
    talk = Conversation()
    await talk.judge(*TURNS[:5])
    talk.bench.engine.sick = frozenset({"tone"})
    failed, _ = await talk.judge(*TURNS)
    talk.bench.engine.sick = frozenset()
    found, computed = await talk.judge(*TURNS)

    assert (failed.decided, failed.is_by_failure) == ("block", True)
    assert computed == {"tone": 1}
    assert not found.is_by_failure


@pytest.mark.parametrize("new", [(), TURNS[4:]])
async def test_what_is_known_counts_though_its_version_cannot_be_loaded(
    new: tuple[str, ...],
) -> None:
    talk = Conversation(on_failure=OnFailure.ALLOW)
    bench, told = talk.bench.bench, TURNS[:4]
    windows = await Conversation().bench.windows(told[1], "attack")
    talk.bench.engine.denied = {("attack", windows[0])}
    await talk.judge(*told)
    bench.residency.evict("attack")
    bench.store.broken["attack/1"] = OSError("the disk is gone")
    found, _ = await talk.judge(*told, *new)

    assert [it.action == "block" for it in found.decisions[:2]] == [False, True]
    assert [it.reference for it in found.failures] == ["attack"] * bool(new)


async def test_the_answers_of_many_windows_are_kept_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    talk, kept, now, keep = Conversation(), Counter[int](), 0, KnownRows.keep

    def keep_and_count(answers: KnownRows, *row: Any) -> None:  # noqa: ANN401 - of `keep`
        kept[now] += 1
        keep(answers, *row)

    async def count_turns() -> None:
        nonlocal now
        while True:
            now += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(KnownRows, "keep", keep_and_count)
    counting = asyncio.ensure_future(count_turns())
    await talk.judge(*(" ".join(random.Random(it).choices(TURNS, k=400)) for it in range(4)))
    counting.cancel()

    assert kept.total() > 2 * SLICE
    assert max(kept.values()) <= SLICE


def window(number: int, *, size: int = 1) -> Encoding:
    return Encoding(token_ids=(number,) * size, type_ids=(0,) * size)


def test_short_answers_take_no_more_memory_than_the_limit() -> None:
    manifest, answers = Conversation().bench.publish("tone"), KnownRows(CACHE)
    tracemalloc.start()
    for number in range(5000):
        answers.keep("ann", manifest, window(number), answer(float(number)))
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert CACHE / 2 < num_bytes < CACHE


def test_the_oldest_answers_go_first_and_a_large_one_is_not_kept() -> None:
    num_bytes = BYTES_PER_ANSWER + BYTES_PER_TOKEN + 8
    manifest, answers = Conversation().bench.publish("tone"), KnownRows(3 * num_bytes)
    for number in range(4):
        answers.keep("ann", manifest, window(number), answer(float(number)))
        answers.find("ann", manifest, [window(0)])
    answers.keep("ann", manifest, window(9, size=99), answer(9.0))

    found = answers.find("ann", manifest, [*map(window, range(4)), window(9, size=99)])
    assert {it.token_ids[0]: row.logits for it, row in found.items()} == {
        0: [0.0],
        2: [2.0],
        3: [3.0],
    }
