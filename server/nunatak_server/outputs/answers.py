"""Extractive question answering: the parts of a context that answer a question.

Each token of the context, and the first token of the window, has a probability as the start and
one as the end of the answer. The score of a pair of tokens i <= j is the product of both. "No
answer" is the first token twice (Devlin et al. 2019, arXiv:1810.04805, sec. 4.2 and 4.3). The
pipeline of transformers computes the same scores.

Where answers are whole words, the score of an answer is the sum over the pairs in these words. Over
several windows, an answer has its largest score, and "no answer" has its least.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from nunatak_model import Alignment
from nunatak_server.outputs.entities import Window
from nunatak_server.outputs.scores import softmax

CONTEXT = 1
"""Index of the context in the pair of question and context."""

NO_ANSWER = (0, 0)

Span = tuple[int, int]


class AnswerScore(TypedDict):
    """A part of the context, with positions in characters; empty for "no answer"."""

    answer: str
    score: float
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """Options of the caller; lengths are in tokens."""

    top_k: int = 1
    max_answer_tokens: int = 15
    may_have_no_answer: bool = False
    align_to_words: bool = False
    """Whether an answer grows to the whole words of its first and last token."""
    stride: int | None = None


def best_answers(
    windows: Sequence[Window], context: str, *, options: AnswerOptions
) -> list[AnswerScore]:
    """Return the best parts of the context, best first; none if the context has no tokens."""
    scores = dict[Span, float]()
    no_answer = 1.0
    for window in windows:
        starts, ends = _probabilities(window)
        no_answer = min(no_answer, starts[0] * ends[0])
        for span, score in _spans(window.alignment, starts, ends, options).items():
            scores[span] = max(score, scores.get(span, score))
    if options.may_have_no_answer:
        scores[NO_ANSWER] = no_answer
    best = heapq.nsmallest(options.top_k, scores, key=lambda span: (-scores[span], span))
    return [
        AnswerScore(answer=context[begin:end], score=scores[begin, end], start=begin, end=end)
        for begin, end in best
    ]


def _probabilities(window: Window) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """Return start and end probabilities of the first token and the tokens of the context."""
    texts = window.alignment.text_ids
    tokens = [0, *(token for token, text in enumerate(texts) if text == CONTEXT)]
    starts, ends = (
        dict(zip(tokens, softmax([window.logits[token][side] for token in tokens]), strict=True))
        for side in (0, 1)
    )
    return starts, ends


def _spans(
    alignment: Alignment,
    starts: Mapping[int, float],
    ends: Mapping[int, float],
    options: AnswerOptions,
) -> Mapping[Span, float]:
    """Return the score of every part of the context, by its range of characters."""
    _, *tokens = starts
    places = _words(alignment) if options.align_to_words else alignment.offsets
    found = dict[Span, float]()
    for place, first in enumerate(tokens):
        for last in tokens[place : place + options.max_answer_tokens]:
            span = (places[first][0], places[last][1])
            if span[0] < span[1]:
                # Tokens may share words or characters, so different tokens can give the same span.
                known, score = found.get(span, 0.0), starts[first] * ends[last]
                found[span] = known + score if options.align_to_words else max(known, score)
    return found


def _words(alignment: Alignment) -> Sequence[Span]:
    """Return for each token the characters of its word, within the window."""
    keys = list(zip(alignment.text_ids, alignment.word_ids, strict=True))
    first = {key: token for token, key in reversed(list(enumerate(keys)))}
    last = {key: token for token, key in enumerate(keys)}
    return [
        alignment.offsets[token]
        if word is None
        else (
            alignment.offsets[first[text, word]][0],
            alignment.offsets[last[text, word]][1],
        )
        for token, (text, word) in enumerate(keys)
    ]
