"""Answers to questions against transformers' question-answering pipeline, family by family."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from doubles.published_answers import PublishedAnswer, published_answers
from doubles.trained_tokenizers import TokenizerFamily, published, random_texts, served
from nunatak_contract.requests import Parameters
from nunatak_server.outputs.entities import AnswerScore, best_answers, window_of

QUESTION = "Who wrote it?"
CONTEXTS = [text for text in random_texts(24, seed=5, longest=20) if not text.isspace()]
# Every word occurs once, because the pipeline adds up answers with equal texts at different places.
PLAIN = "Ada Lovelace's report (London, 1843) said: où est, 東京 and 🙂."
RANDOM, SURE = 3.0, 12.0
"""Scale of the logits. Larger logits give the best pair of tokens a higher probability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question, with the answers of both sides."""

    expected: list[PublishedAnswer]
    found: list[AnswerScore]


def asked(
    family: TokenizerFamily,
    contexts: list[str],
    *,
    scale: float,
    max_length: int = 512,
    top_k: int = 1,
    max_answer_len: int = 15,
    may_have_no_answer: bool = False,
    align_to_words: bool = False,
    num_candidates: int | None = None,
) -> Iterator[Asked]:
    """Ask both sides about each context, with the same random logits."""
    options = Parameters(
        top_k=top_k,
        max_answer_len=max_answer_len,
        handle_impossible_answer=may_have_no_answer,
        align_to_words=align_to_words,
    )
    for seed, context in enumerate(contexts):
        encoded = published(family)(
            QUESTION,
            context,
            truncation="only_second",
            max_length=max_length,
            stride=8,
            return_overflowing_tokens=True,
        )
        chance = np.random.default_rng(seed)
        logits = [chance.normal(0, scale, (len(it.ids), 2)) for it in encoded.encodings]
        expected = published_answers(
            list(zip(encoded.encodings, logits, strict=True)),
            context,
            top_k=top_k,
            max_answer_len=max_answer_len,
            handle_impossible_answer=may_have_no_answer,
            align_to_words=align_to_words,
            num_candidates=num_candidates,
        )
        (windows,) = served(family).encode_windows(
            [(QUESTION, context)], max_length=max_length, stride=8
        )
        found = best_answers(
            [
                window_of(window, drawn.flatten().tolist())
                for window, drawn in zip(windows, logits, strict=True)
            ],
            context,
            options=options,
        )
        yield Asked(expected=expected, found=found)


def assert_equal(one: Asked, *, tolerance: float = 1e-9) -> None:
    places = [(it.answer, it.start, it.end) for it in one.expected]
    assert [(it["answer"], it["start"], it["end"]) for it in one.found] == places
    scores = [it.score for it in one.expected]
    assert [it["score"] for it in one.found] == pytest.approx(scores, abs=tolerance)


@pytest.mark.pairs
@pytest.mark.parametrize("family", TokenizerFamily)
@pytest.mark.parametrize("max_answer_len", [1, 15])
@pytest.mark.parametrize("may_have_no_answer", [False, True])
@pytest.mark.parametrize("max_length", [48, 512], ids=["windows", "whole"])
def test_the_best_answer_matches_the_pipeline(
    family: TokenizerFamily, max_answer_len: int, *, may_have_no_answer: bool, max_length: int
) -> None:
    num_equal = 0
    for one in asked(
        family,
        CONTEXTS,
        scale=RANDOM,
        max_length=max_length,
        max_answer_len=max_answer_len,
        may_have_no_answer=may_have_no_answer,
    ):
        (best,) = one.expected
        # The pipeline may choose a token without characters as an answer, and adds up windows of
        # one text.
        if best.num_pairs == (1 if best.answer else 0):
            assert_equal(one)
            num_equal += 1
    assert num_equal >= 0.7 * len(CONTEXTS)


@pytest.mark.parametrize("family", TokenizerFamily)
@pytest.mark.parametrize("top_k", [1, 3])
def test_sure_answers_of_whole_words_match_the_pipeline(
    family: TokenizerFamily, top_k: int
) -> None:
    for one in asked(family, [PLAIN] * 20, scale=SURE, top_k=top_k, align_to_words=True):
        assert_equal(one, tolerance=1e-3)


@pytest.mark.parametrize("family", TokenizerFamily)
def test_whole_words_match_the_pipeline_if_it_looks_at_all_pairs(family: TokenizerFamily) -> None:
    for one in asked(
        family, [PLAIN] * 5, scale=RANDOM, top_k=5, align_to_words=True, num_candidates=1_000_000
    ):
        assert_equal(one)
