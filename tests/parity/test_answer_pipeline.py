"""Answers to questions against transformers' question-answering pipeline, family by family."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Encoding
from transformers import BertConfig, BertForTokenClassification, TokenClassificationPipeline
from transformers.pipelines.token_classification import AggregationStrategy as PipelineStrategy

from doubles.backbones import tiny_config
from doubles.trained_tokenizers import TokenizerFamily, published, random_texts, served
from nunatak_contract.enums import AggregationStrategy
from nunatak_contract.requests import Parameters
from nunatak_server.outputs.entities import AnswerScore, best_answers, find_entities, window_of

Floats = NDArray[np.float64]
MASKED = -10000.0
QUESTION = "Who wrote it?"
CONTEXTS = [text for text in random_texts(24, seed=5, longest=20) if not text.isspace()]
# Every word occurs once, because the pipeline adds up answers with equal texts at different places.
PLAIN = "Ada Lovelace's report (London, 1843) said: où est, 東京 and 🙂."
RANDOM, SURE = 3.0, 12.0
"""Scale of the logits. Larger logits give the best pair of tokens a higher probability."""
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC-X", "B-", "plain")
STRATEGIES = [it for it in AggregationStrategy if it is not AggregationStrategy.WORD]
MAX_LENGTH, STRIDE = 24, 6
TEXTS = [
    "ann met bob.",
    "Ann-Marie O'Neil, of st. john's; and co!",
    "x",
    "  two   spaces, \u20ac and d\u20ac  end ",
    "one text that goes on and on, for ever and ever, until nobody in sight can hold it whole.",
    *random_texts(8, seed=1, longest=25),
]
# Without aggregation of tokens, the pipeline has no windows.
CASES = [
    *((strategy, 512) for strategy in STRATEGIES),
    *((it, MAX_LENGTH) for it in STRATEGIES if it is not AggregationStrategy.NONE),
]


@dataclass(slots=True, kw_only=True)
class PublishedAnswer:
    """An answer, with the number of its pairs of tokens; 0 pairs for "no answer"."""

    answer: str
    score: float
    start: int
    end: int
    num_pairs: int = 1


def published_answers(
    windows: Sequence[tuple[Encoding, Floats]],
    context: str,
    *,
    top_k: int = 1,
    max_answer_len: int = 15,
    handle_impossible_answer: bool = False,
    align_to_words: bool = True,
    num_candidates: int | None = None,
) -> list[PublishedAnswer]:
    """Answer by the logits [tokens, 2] of windows; more candidates than published are possible."""
    if num_candidates is None:
        num_candidates = 2 * top_k + 10 if align_to_words else top_k
    found: list[PublishedAnswer] = []
    least_null = 1e6
    for encoding, logits in windows:
        allowed = np.array([text == 1 for text in encoding.sequence_ids])
        allowed[0] = True
        starts, ends = (_softmax(np.where(allowed, logits[:, side], MASKED)) for side in (0, 1))
        least_null = min(least_null, float(starts[0] * ends[0]))
        starts[0] = ends[0] = 0.0
        products = np.tril(np.triu(np.outer(starts, ends)), max_answer_len - 1)
        best = np.argsort(-products, axis=None, kind="stable")[:num_candidates]
        # Pairs without a score, because of the limits, change no answer.
        for place in best[products.flat[best] > 0].tolist():
            first, last = divmod(place, len(encoding.ids))
            if allowed[first] and allowed[last]:
                begin, end = _characters(encoding, first, last, align_to_words=align_to_words)
                _add(found, context[begin:end], float(products[first, last]), begin, end)
    if handle_impossible_answer:
        found.append(PublishedAnswer(answer="", score=least_null, start=0, end=0, num_pairs=0))
    return sorted(found, key=lambda it: it.score, reverse=True)[:top_k]


def _softmax(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def _characters(
    encoding: Encoding, first: int, last: int, *, align_to_words: bool
) -> tuple[int, int]:
    first_word, last_word = encoding.token_to_word(first), encoding.token_to_word(last)
    if align_to_words and first_word is not None and last_word is not None:
        head = encoding.word_to_chars(first_word, 1)
        tail = encoding.word_to_chars(last_word, 1)
        if head is not None and tail is not None:
            return head[0], tail[1]
    return encoding.offsets[first][0], encoding.offsets[last][1]


def _add(found: list[PublishedAnswer], text: str, score: float, begin: int, end: int) -> None:
    """Add a pair of tokens to the answer with the same text, at any place."""
    for known in found:
        if known.answer.lower() == text.lower():
            known.score += score
            known.num_pairs += 1
            return
    found.append(PublishedAnswer(answer=text, score=score, start=begin, end=end))


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


@cache
def pipeline_of(family: TokenizerFamily) -> Any:  # noqa: ANN401 - untyped there
    """The pipeline with a family's tokenizer; the logits come from the test."""
    labels = dict(enumerate(LABELS))
    config = BertConfig(**tiny_config(num_layers=1, family="bert"), id2label=labels)  # pyrefly: ignore[bad-argument-type]
    model = BertForTokenClassification(config)
    return TokenClassificationPipeline(model=model, tokenizer=published(family))


def entities_of_both(
    family: TokenizerFamily,
    text: str,
    strategy: AggregationStrategy,
    ignored: list[str],
    *,
    max_length: int,
) -> tuple[list[Any], list[Any]]:
    """The results of the pipeline and of our code for the same random logits."""
    ours = served(family)
    (encodings,) = ours.encode_windows([text], max_length=max_length, stride=STRIDE)
    pipeline = pipeline_of(family)
    windows = {"return_overflowing_tokens": True, "padding": True, "stride": STRIDE}
    inputs = list(
        pipeline.preprocess(
            text, is_split_into_words=False, tokenizer_params={**windows, "max_length": max_length}
        )
    )
    generator = torch.Generator().manual_seed(len(text))
    logits = [
        torch.randn(1, len(each["input_ids"][0]), len(LABELS), generator=generator) * 3
        for each in inputs
    ]
    outputs = [{**each, "logits": drawn} for each, drawn in zip(inputs, logits, strict=True)]
    expected = pipeline.postprocess(outputs, PipelineStrategy(strategy.value), ignored)
    if len(inputs) > 1 and expected and expected[0]["start"] == expected[0]["end"]:
        # With several windows, the pipeline lists the first entity twice if it has no characters.
        del expected[0]
    found = [
        window_of(encoding, [float(x) for x in drawn[0, : encoding.num_tokens].flatten()])
        for encoding, drawn in zip(encodings, logits, strict=True)
    ]
    options = Parameters(aggregation_strategy=strategy, ignore_labels=list(ignored))
    return expected, find_entities(found, labels=LABELS, join=ours.join, options=options)


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


@pytest.mark.pairs
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("ignored", [[], ["O", "PER", "B-LOC"]], ids=["none", "some"])
@pytest.mark.parametrize(("strategy", "max_length"), CASES)
@pytest.mark.parametrize("family", TokenizerFamily)
def test_entities_match_the_pipeline(
    family: TokenizerFamily, strategy: AggregationStrategy, max_length: int, ignored: list[str]
) -> None:
    for text in TEXTS:
        expected, found = entities_of_both(family, text, strategy, ignored, max_length=max_length)

        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            assert ours["score"] == pytest.approx(float(theirs["score"]), abs=1e-5)
            assert {**ours, "score": None} == {**theirs, "score": None}
