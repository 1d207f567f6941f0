"""Extractive question answering: the parts of a context that answer a question.

A span from token i to token j >= i of a window has the logit `start[i] + end[j]`, and "no answer"
has `start[0] + end[0]`, that of the first token, in the window where it is least (Devlin et al.
2019, arXiv:1810.04805, sec. 4.2 and 4.3, and its code for SQuAD). A span that several windows hold
counts once, with its largest logit. Scores are a softmax over all candidates, where the published
code takes the 20 best only: so they depend on nothing but the model and the length of answers.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from nunatak_server.postprocess.scores import softmax
from nunatak_server.postprocess.windows import Window

CONTEXT = 1
"""A question is read as a pair, in which the context comes second."""

NO_ANSWER = (0, 0)

Span = tuple[int, int]


class Answer(TypedDict):
    """A part of the context by its characters; empty for "no answer"."""

    answer: str
    score: float
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """What the caller wants to see; lengths are in tokens."""

    top_k: int = 1
    max_answer_tokens: int = 15
    may_have_no_answer: bool = False
    stride: int | None = None


def best_answers(
    windows: Sequence[Window], context: str, *, options: AnswerOptions
) -> list[Answer]:
    """Find the best parts of the context, best first; none if it has nothing to choose."""
    logits = dict[Span, float]()
    for window in windows:
        for span, logit in _spans(window, options.max_answer_tokens).items():
            logits[span] = max(logit, logits.get(span, logit))
    if options.may_have_no_answer:
        logits[NO_ANSWER] = min(sum(window.logits[0]) for window in windows)
    if not logits:
        return []
    scores = dict(zip(logits, softmax(list(logits.values())), strict=True))
    best = heapq.nsmallest(options.top_k, scores, key=lambda span: (-scores[span], span))
    return [
        Answer(answer=context[begin:end], score=scores[begin, end], start=begin, end=end)
        for begin, end in best
    ]


def _spans(window: Window, max_tokens: int) -> Mapping[Span, float]:
    """The logit of every span of the context, by its characters."""
    offsets = window.alignment.offsets
    tokens = [token for token, text in enumerate(window.alignment.text_ids) if text == CONTEXT]
    found = dict[Span, float]()
    for place, first in enumerate(tokens):
        for last in tokens[place : place + max_tokens]:
            span = (offsets[first][0], offsets[last][1])
            logit = window.logits[first][0] + window.logits[last][1]
            if span[0] < span[1]:
                # Tokens may share characters, so that different tokens give one span.
                found[span] = max(logit, found.get(span, logit))
    return found
