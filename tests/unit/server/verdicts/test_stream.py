"""Streams of verdicts: equal to the verdict about the whole text, however the text arrives."""

import asyncio
import gc
import random
import tracemalloc
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from copy import deepcopy
from dataclasses import replace

import pytest
from tokenizers import normalizers, pre_tokenizers

from doubles import streams
from doubles.policies import UNREAD_PASSES, make_policy, make_rule, when
from doubles.refusals import raises
from doubles.rendering import rendered
from doubles.streams import (
    HANDLING,
    TASKS,
    Outcome,
    Said,
    StreamBench,
    by_word,
    divided,
    essence,
    guard,
    harmless,
)
from doubles.trained_tokenizers import TokenizerFamily, published, random_texts
from nunatak_contract.enums import PolicyMode, VerdictAction
from nunatak_contract.policies import Policy
from nunatak_model import Alignment, Encoding, TextTokenizer
from nunatak_server.predict.growing import Growing, space_before
from nunatak_server.scheduler.rows import PendingRow
from nunatak_server.tokenization import Encodings, Reading
from nunatak_server.verdicts import stream
from nunatak_server.verdicts.patterns import Matches
from nunatak_server.verdicts.rules import Answers, TextDecision, decisions
from nunatak_server.verdicts.stream import READ_AGAIN, Released, VerdictStream

ALLOW, MASK, BLOCK = VerdictAction.ALLOW, VerdictAction.MASK, VerdictAction.BLOCK
BERT = TokenizerFamily.BERT


def texts(number: int, *, seed: int, longest: int = 70) -> list[str]:
    made = (it.replace("\0", "0") for it in random_texts(2 * number, seed=seed, longest=longest))
    return [it for it in made if it.strip()][:number]


@pytest.mark.each
@pytest.mark.parametrize("reads_all", [False, True])
@pytest.mark.parametrize("family", TokenizerFamily)
async def test_any_division_has_the_verdict_of_the_whole_text_and_leaks_nothing(
    family: TokenizerFamily, *, reads_all: bool
) -> None:
    bench, chance = StreamBench(family, guard(reads_all=reads_all)), random.Random(3)
    for text in texts(2, seed=7):
        whole = await bench.whole(text)
        of_whole = set(bench.engine.computed)
        for mean in (1, 20):
            bench.engine.computed.clear()
            found = await bench.streamed(divided(text, chance, mean=mean))

            # Each window is computed once, and no window that the whole text lacks.
            computed = bench.engine.computed
            assert set(computed) <= of_whole
            assert len(computed) == len(set(computed))
            found.check(whole, text)
        bench.engine.computed.clear()


@pytest.mark.parametrize(
    ("normalizer", "words"),
    [
        (normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None),
        (normalizers.Strip(), pre_tokenizers.Metaspace()),
    ],
    ids=["llama", "deberta"],
)
async def test_the_windows_are_those_of_the_whole_text_if_its_begin_is_read_differently(
    monkeypatch: pytest.MonkeyPatch,
    normalizer: normalizers.Normalizer,
    words: pre_tokenizers.PreTokenizer | None,
) -> None:
    tokenizer = deepcopy(published(TokenizerFamily.XLM_ROBERTA).backend_tokenizer)
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, words
    made = TextTokenizer(tokenizer.to_str().encode(), num_token_types=2)
    monkeypatch.setattr(streams, "served", {TokenizerFamily.XLM_ROBERTA: made}.get)
    bench = StreamBench(TokenizerFamily.XLM_ROBERTA, guard())
    text = harmless(bench).replace(" ", " \n ")

    await bench.whole(text)
    of_whole = set(bench.engine.computed)
    bench.engine.computed.clear()
    await bench.streamed(by_word(text))

    assert set(bench.engine.computed) == of_whole


@pytest.mark.parametrize("max_length", [1, 2, 3])
@pytest.mark.parametrize("reads_all", [False, True])
async def test_a_task_with_room_for_no_or_one_token_judges_a_stream_as_a_whole_text(
    monkeypatch: pytest.MonkeyPatch, max_length: int, *, reads_all: bool
) -> None:
    monkeypatch.setitem(TASKS, "tone", (TASKS["tone"][0], max_length))
    bench = StreamBench(BERT, guard(reads_all=reads_all))
    text = harmless(bench)

    found = await bench.streamed(by_word(text))

    assert essence(found.final) == essence(await bench.whole(text))
    assert found.text == (text if found.final.action is ALLOW else "")


async def test_text_is_released_once_its_windows_are_closed_and_words_stay_whole() -> None:
    bench = StreamBench(BERT, guard())
    text = harmless(bench)
    said = Said(bench.admission)
    async with aclosing(bench.stream().events(said.recorded(by_word(text)))) as events:
        async for event in events:
            if isinstance(event, Released):
                said.released.append((len(said.arrived), event.text))

    assert "".join(it for _, it in said.released) == text
    shown = 0
    for arrived, piece in said.released[:-1]:
        shown += len(piece)
        assert text[shown] == " " or text[shown - 1] == " "
        assert shown < arrived
    # The longest windows have 20 tokens, and most words one.
    first, _ = said.released[0]
    assert first < len(text) / 2


async def test_a_dry_run_shows_the_whole_text_and_decides_as_usual() -> None:
    bench = StreamBench(BERT, guard(mode=PolicyMode.DRY_RUN))
    for text in texts(4, seed=2):
        found = await bench.streamed(by_word(text))

        whole = await bench.whole(text)
        assert (found.text, found.final.action) == (text, ALLOW)
        assert found.final.decided is whole.decided


@pytest.mark.parametrize(
    ("chunks", "code"),
    [
        ([], "empty_text"),
        ([" ", "\n"], "empty_text"),
        (["a " * 6000], "text_too_long"),
        (["a", "\ud83d", "b"], "invalid_text"),
        (["a", "\ude00\ud83d"], "invalid_text"),
    ],
)
async def test_text_that_no_task_can_read_has_no_verdict(chunks: list[str], code: str) -> None:
    bench = StreamBench(BERT, guard())

    with raises(code):
        await bench.streamed(chunks)


async def test_a_first_look_at_many_windows_judges_each_of_them() -> None:
    bench = StreamBench(BERT, guard())
    text = harmless(bench, num_words=200).replace(" ", "\n")
    windows = await bench.windows(text, "attack")
    cold = StreamBench(BERT, guard())
    cold.engine.is_calm = True
    lines = text.splitlines(keepends=True)
    judged = set[Encoding]()

    async def chunks() -> AsyncGenerator[str]:
        for chunk in ("".join(lines[:100]), *lines[100:]):
            yield chunk
            await Said(cold.admission).settle()
        judged.update(encoding for task, encoding in cold.engine.computed if task == "attack")

    await cold.streamed(chunks())

    assert judged >= set(windows[: len(windows) // 2])


@pytest.mark.parametrize("second", ["attack", "attack/1"])
async def test_two_references_of_one_version_have_each_windows_own_answer(second: str) -> None:
    rules = (
        make_rule(when("attack", "yes", threshold=0.999), name="sure", action=VerdictAction.FLAG),
        make_rule(when(second, "yes", threshold=0.5), name="block"),
    )
    bench = StreamBench(BERT, make_policy(*rules))
    text = harmless(bench)
    first, bad, *_ = await bench.windows(text, "attack")
    bench.engine.denied = {("attack", bad)}
    submit, has_waited = bench.engine.submit, False

    def late_once(rows: Sequence[PendingRow]) -> None:
        """Only the first window is answered in time in the first look."""
        nonlocal has_waited
        in_time = [it for it in rows if has_waited or it.spec.encoding == first]
        has_waited = has_waited or len(in_time) < len(rows)
        submit(in_time)

    async def chunks() -> AsyncGenerator[str]:
        words = by_word(text)
        yield "".join(words[:25])
        await asyncio.sleep(0.6)
        for word in words[25:]:
            yield word

    bench.engine.submit = late_once  # pyrefly: ignore[method-assign]
    handling = replace(HANDLING, default_deadline_s=0.4)
    stream = VerdictStream(bench.judge, bench.published, handling, clock=bench.clock)
    async with aclosing(stream.events(chunks())) as events:
        found = Outcome(events=[event async for event in events])

    assert (found.final.action, found.final.is_by_failure) == (BLOCK, False)


async def test_a_stream_counts_once_for_each_task() -> None:
    bench = StreamBench(BERT, guard())
    text = harmless(bench)

    await bench.streamed(by_word(text))

    lines = rendered(bench.bench.metrics).splitlines()
    counted = [it for it in lines if it.startswith("nunatak_requests_total{")]
    assert len(counted) == len(TASKS)
    assert all(it.endswith(" 1.0") for it in counted)


async def test_a_window_is_judged_at_the_chunk_that_closes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for task, (head, max_length) in tuple(TASKS.items()):
        monkeypatch.setitem(TASKS, task, (head, 6 * max_length))

    async def numbers_judged() -> list[int]:
        bench, numbers = StreamBench(BERT, guard()), list[int]()
        words = harmless(bench, num_words=150).split(" ")

        async def chunks() -> AsyncGenerator[str]:
            for place in range(0, len(words), 8):
                yield " ".join(words[place : place + 8]) + " "
                await Said(bench.admission).settle()
                numbers.append(len(bench.engine.computed))

        await bench.streamed(chunks())
        return numbers

    found = await numbers_judged()
    for limit, value in {"EARLY": 0, "LEAST_GROWTH": 1, "READ_AGAIN": 10_000}.items():
        monkeypatch.setattr(stream, limit, value)

    assert found == await numbers_judged()


@pytest.mark.parametrize("begin", ["x" * 1000, "x" + 1000 * " "])
async def test_a_begin_of_few_tokens_delays_no_look(begin: str) -> None:
    bench = StreamBench(BERT, make_policy(make_rule(when("tone", "sharp"))))
    text, arrived = f"{begin} {harmless(bench, num_words=100)}", 0
    (window, *_) = await bench.windows(text, "tone")

    async def chunks() -> AsyncGenerator[str]:
        nonlocal arrived
        for place in range(0, len(text), 8):
            if window in (it for _, it in bench.engine.computed):
                return
            arrived = place + 8
            yield text[place:arrived]
            await Said(bench.admission).settle()

    await bench.streamed(chunks())

    assert arrived < len(begin) + 150


@pytest.mark.parametrize("space", ["\n", " "])
async def test_a_long_text_of_any_white_space_is_read_a_few_times(
    monkeypatch: pytest.MonkeyPatch, space: str
) -> None:
    bench, plan, num_read = StreamBench(BERT, guard()), Growing.plan, list[int]()

    def counted(growing: Growing, readings: Iterable[Reading]) -> object:
        text, *planned = plan(growing, readings)
        num_read.append(len(text))
        return text, *planned

    monkeypatch.setattr(Growing, "plan", counted)
    text = harmless(bench, num_words=240).replace(" ", space)

    await bench.streamed([text[it : it + 5] for it in range(0, len(text), 5)])

    assert sum(num_read) <= 2 * READ_AGAIN * len(text)


async def test_a_text_that_is_held_is_decided_about_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, take = StreamBench(BERT, guard(reads_all=True)), Growing.take
    num_windows = defaultdict[Reading, list[int]](list)

    def counted(growing: Growing, reading: Reading, windows: Encodings, *, begin: int) -> Encodings:
        taken = take(growing, reading, windows, begin=begin)
        num_windows[replace(reading, start=None)].append(len(taken))
        return taken

    monkeypatch.setattr(Growing, "take", counted)
    found = await bench.streamed(by_word("\ue000 " + harmless(bench, num_words=300)))

    assert (found.text, found.final.is_by_failure) == ("", True)
    assert all(sum(it) <= 2 * READ_AGAIN * it[-1] for it in num_windows.values())


async def test_many_masks_are_decided_about_a_few_times_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = make_policy(make_rule(when("names", "X"), action=MASK), unjudged=UNREAD_PASSES)
    bench, num_spans = StreamBench(BERT, policy), list[int]()

    def counted(
        policy: Policy, answers: Answers, decided: Sequence[str], matches: Sequence[Matches]
    ) -> Iterator[TextDecision]:
        for it in decisions(policy, answers, decided, matches):
            num_spans.append(len(list(it.masking)))
            yield it

    monkeypatch.setattr(stream, "decisions", counted)
    text = harmless(bench, num_words=300)
    bench.engine.finds_names = True

    found = await bench.streamed(by_word(text))

    num_masks = sum(isinstance(it, Released) and it.is_mask for it in found.events)
    assert num_masks == 300
    assert sum(num_spans) <= 2 * READ_AGAIN * num_masks


async def test_a_released_window_leaves_the_places_of_no_token_in_memory() -> None:
    bench = StreamBench(BERT, guard())
    text, counts = harmless(bench, num_words=300), list[int]()

    def count() -> None:
        # A deprecated object of torch warns if it is asked for its class.
        counts.append(sum(type(it) is Alignment for it in gc.get_objects()))

    async def chunks() -> AsyncGenerator[str]:
        count()
        for chunk in by_word(text):
            yield chunk
            await Said(bench.admission).settle()
        assert len(bench.engine.computed) > 100
        for kept in (bench.engine.computed, bench.engine.rows):
            kept.clear()
        count()

    await bench.streamed(chunks())

    before, after = counts
    assert after - before < 20


def test_the_last_white_space_is_found_in_the_chunks_alone() -> None:
    bench, chance = StreamBench(BERT, guard()), random.Random(5)
    for _ in range(100):
        text = "".join(chance.choices("ab \n\u2003", k=30))
        stream, place = bench.stream(), 0
        while place < len(text):
            size = chance.randint(1, 5)
            stream.add(text[place : place + size])
            place = min(len(text), place + size)
            assert stream.last_space == space_before(text[:place], place)


def test_a_chunk_copies_no_text_that_came_before() -> None:
    stream = StreamBench(BERT, guard()).stream()
    stream.add("x" * 1_000_000)
    tracemalloc.start()
    try:
        stream.add("x")
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most_bytes < 10_000
