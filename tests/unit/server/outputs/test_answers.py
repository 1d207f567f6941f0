"""Laws of spans: answers against a search that tries everything, and entities."""

import math
import random
from collections import defaultdict
from itertools import combinations_with_replacement

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.backbones import tiny_backbone
from doubles.trained_tokenizers import TokenizerFamily, served
from nunatak_contract.enums import AggregationStrategy
from nunatak_contract.requests import Parameters
from nunatak_model import Alignment, Encoding, TextTokenizer
from nunatak_server.outputs.entities import AnswerScore, Entity, best_answers, find_entities
from nunatak_server.outputs.outputs import span_window_of, window_of

TOKENIZER = tiny_backbone(num_layers=1).tokenizer
QUESTION, CONTEXT = "who?", "ann met bob, then bob met cy."
MANY_SCRIPTS = "Ada Lovelace's report (London, 1843) said: où est, 東京 and 🙂\u200d🙂."
LABELS = ("O", "B-X", "I-X")


def rows_of(
    context: str, *, max_length: int, seed: int, tokenizer: TextTokenizer = TOKENIZER
) -> list[tuple[Encoding, list[float]]]:
    """Windows of a context, with logits for the start and the end at each token."""
    chance = random.Random(seed)
    (encodings,) = tokenizer.encode_windows(
        [(QUESTION, context)], max_length=max_length, stride=max_length // 4
    )
    return [(it, [chance.gauss(0, 3) for _ in range(2 * it.num_tokens)]) for it in encodings]


def answers_in(
    rows: list[tuple[Encoding, list[float]]], context: str, options: Parameters
) -> list[AnswerScore]:
    return best_answers((span_window_of(*it) for it in rows), context, options=options)


def places_of(alignment: Alignment, *, of_words: bool) -> list[tuple[int, int]]:
    """Begin and end of each token, or of its whole word."""
    if not of_words:
        return list(alignment.offsets)
    words = list(zip(alignment.text_ids, alignment.word_ids, strict=True))
    parts = [[at for at, it in enumerate(words) if it == word] for word in words]
    return [
        alignment.offsets[token]
        if words[token][1] is None
        else (alignment.offsets[part[0]][0], alignment.offsets[part[-1]][1])
        for token, part in enumerate(parts)
    ]


def search(
    rows: list[tuple[Encoding, list[float]]], *, options: Parameters
) -> list[tuple[float, int, int]]:
    """Every pair of tokens of every window, tried one by one: (score, start, end), best first."""
    best: dict[tuple[int, int], float] = {}
    no_answer: list[float] = []
    for encoding, logits in rows:
        assert encoding.alignment is not None
        found = defaultdict[tuple[int, int], list[float]](list)
        places = places_of(encoding.alignment, of_words=options.align_to_words)
        texts = encoding.alignment.text_ids
        read = [token for token, text in enumerate(texts) if token == 0 or text == 1]
        start_total, end_total = (
            math.fsum(math.exp(logits[2 * token + side]) for token in read) for side in (0, 1)
        )
        for first, last in combinations_with_replacement(read, 2):
            start, end = math.exp(logits[2 * first]), math.exp(logits[2 * last + 1])
            score = start / start_total * end / end_total
            span = places[first][0], places[last][1]
            if (first, last) == (0, 0):
                no_answer.append(score)
            elif first > 0 and last - first + 1 <= options.max_answer_len and span[0] < span[1]:
                found[span].append(score)
        for span, scores in found.items():
            own = math.fsum(scores) if options.align_to_words else max(scores)
            best[span] = max(own, best.get(span, own))
    if options.handle_impossible_answer:
        best[0, 0] = min(no_answer)
    ranked = sorted(((score, *span) for span, score in best.items()), reverse=True)
    return ranked[: options.top_k]


@given(
    family=st.none() | st.sampled_from(TokenizerFamily),
    seed=st.integers(0, 1000),
    max_length=st.integers(20, 60),
    top_k=st.integers(1, 12),
    max_tokens=st.integers(1, 40),
    may_have_no_answer=st.booleans(),
    align_to_words=st.booleans(),
)
@settings(max_examples=200, derandomize=True, deadline=None)
def test_answers_match_a_search_that_tries_everything(
    family: TokenizerFamily | None,
    seed: int,
    max_length: int,
    top_k: int,
    max_tokens: int,
    *,
    may_have_no_answer: bool,
    align_to_words: bool,
) -> None:
    tokenizer, context = (TOKENIZER, CONTEXT) if family is None else (served(family), MANY_SCRIPTS)
    rows = rows_of(context, max_length=max_length, seed=seed, tokenizer=tokenizer)
    options = Parameters(
        top_k=top_k,
        max_answer_len=max_tokens,
        handle_impossible_answer=may_have_no_answer,
        align_to_words=align_to_words,
    )

    answers = answers_in(rows, context, options)

    expected = search(rows, options=options)
    assert [(it["start"], it["end"]) for it in answers] == [it[1:] for it in expected]
    assert [it["score"] for it in answers] == pytest.approx([it[0] for it in expected])
    assert all(it["answer"] == context[it["start"] : it["end"]] for it in answers)


def test_a_context_without_tokens_has_no_answers() -> None:
    rows = rows_of("\u200d", max_length=40, seed=1)

    assert answers_in(rows, "\u200d", Parameters()) == []


def test_a_word_has_the_label_of_its_first_token_and_its_number() -> None:
    options = Parameters(aggregation_strategy=AggregationStrategy.WORD, ignore_labels=[])

    ((encoding,),) = TOKENIZER.encode_windows(["ab cd"], max_length=64, stride=2)
    assert encoding.alignment is not None
    label_of = {0: 1, 1: 2, 3: 0, 4: 1}
    logits = [
        9.0 * (label == label_of.get(begin))
        for begin, _ in encoding.alignment.offsets
        for label in range(len(LABELS))
    ]

    window = window_of(encoding, logits)
    found = find_entities([window], labels=LABELS, join=TOKENIZER.join, options=options)

    assert [(it["entity"], it["index"]) for it in found if "entity" in it] == [("B-X", 0), ("O", 1)]  # pyrefly: ignore[bad-typed-dict-key]
    assert [(it["start"], it["end"]) for it in found] == [(0, 2), (3, 5)]


@pytest.mark.parametrize("family", [TokenizerFamily.ROBERTA, TokenizerFamily.MODERNBERT])
@pytest.mark.parametrize("stride", [0, 1, 2, 5])
def test_every_token_of_a_long_text_is_labelled_once(family: TokenizerFamily, stride: int) -> None:
    text = "I met 🙂🙂 in 東京\u3000 and 👩\u200d👧 in 서울."
    tokenizer = served(family)

    def labelled(max_length: int) -> list[Entity]:
        (encodings,) = tokenizer.encode_windows([text], max_length=max_length, stride=stride)
        windows = [window_of(it, [2.0, 1.0, 0.0] * it.num_tokens) for it in encodings]
        options = Parameters(ignore_labels=[])
        return find_entities(windows, labels=LABELS, join=tokenizer.join, options=options)

    whole, windowed = labelled(512), labelled(13)

    def spelt(entities: list[Entity]) -> list[tuple[str, int, int]]:
        return [(it["word"], it["start"], it["end"]) for it in entities]

    assert len({it["start"] for it in whole}) < len(whole)
    assert spelt(windowed) == spelt(whole)


def test_words_that_share_a_character_are_all_labelled_in_a_long_text() -> None:
    # U+00B4 is read as a space and an accent, so the character belongs to two words.
    text = "ab\u00b4cd ef gh ij kl mn"
    tokenizer = served(TokenizerFamily.XLM_ROBERTA)
    options = Parameters(aggregation_strategy=AggregationStrategy.WORD, ignore_labels=[])

    def words(max_length: int) -> list[int]:
        (encodings,) = tokenizer.encode_windows([text], max_length=max_length, stride=6)
        windows = [window_of(it, [2.0, 1.0, 0.0] * it.num_tokens) for it in encodings]
        found = find_entities(windows, labels=LABELS, join=tokenizer.join, options=options)
        return [it["index"] for it in found if "index" in it]  # pyrefly: ignore[bad-return]

    assert words(16) == words(512) == list(range(7))
