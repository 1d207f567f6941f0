"""Extractive question answering: the parts of a context that answer a question.

Each token of the context, and the first token of the window, has a probability as the start and
one as the end of the answer. The score of a pair of tokens i <= j is the product of both. "No
answer" is the first token twice (Devlin et al. 2019, arXiv:1810.04805, sec. 4.2 and 4.3). The
pipeline of transformers computes the same scores.

Where answers are whole words, the score of an answer is the sum over the pairs in these words. Over
several windows, an answer has its largest score, and "no answer" has its least.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypedDict

import numpy as np

from nunatak_contract.requests import Parameters
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


def best_answers(
    windows: Iterable[Window], context: str, *, options: Parameters
) -> list[AnswerScore]:
    """Return the best parts of the context, best first; none if the context has no tokens."""
    scores = dict[Span, float]()
    no_answer = 1.0
    for window in windows:
        starts, ends = _probabilities(window)
        no_answer = min(no_answer, starts[0] * ends[0])
        # No other span of the window is among the best of all windows.
        for span, score in _best_spans(window.alignment, starts, ends, options):
            scores[span] = max(score, scores.get(span, score))
    if options.handle_impossible_answer:
        scores[NO_ANSWER] = no_answer
    best = heapq.nsmallest(options.top_k or 1, scores, key=lambda span: (-scores[span], span))
    return [
        AnswerScore(answer=context[begin:end], score=scores[begin, end], start=begin, end=end)
        for begin, end in best
    ]


def _probabilities(window: Window) -> tuple[Mapping[int, float], Mapping[int, float]]:
    texts = window.alignment.text_ids
    tokens = [0, *(token for token, text in enumerate(texts) if text == CONTEXT)]
    starts, ends = (
        dict(zip(tokens, softmax([window.logits[token][side] for token in tokens]), strict=True))
        for side in (0, 1)
    )
    return starts, ends


def _best_spans(
    alignment: Alignment,
    starts: Mapping[int, float],
    ends: Mapping[int, float],
    options: Parameters,
) -> Iterator[tuple[Span, float]]:
    _, *tokens = starts
    places = _words(alignment) if options.align_to_words else alignment.offsets
    begins, begin_of = np.unique([places[token][0] for token in tokens], return_inverse=True)
    finishes, finish_of = np.unique([places[token][1] for token in tokens], return_inverse=True)
    # Every pair of a first and a last token, by the first token and then by the last.
    steps = np.arange(min(options.max_answer_len, len(tokens)))
    first = np.repeat(np.arange(len(tokens)), len(steps))
    last = first + np.tile(steps, len(tokens))
    first, last = first[last < len(tokens)], last[last < len(tokens)]
    is_part = begins[begin_of[first]] < finishes[finish_of[last]]
    first, last = first[is_part], last[is_part]
    if not len(first):
        return
    scores = np.array([starts[token] for token in tokens])[first]
    scores *= np.array([ends[token] for token in tokens])[last]
    # Tokens may share words or characters, so different tokens can give the same span. The number
    # of a span counts its begin and its end, from the least end of any span with this begin.
    row, column = begin_of[first], finish_of[last]
    least = np.full(len(begins), len(finishes))
    np.minimum.at(least, row, column)
    width = int((column - least[row]).max()) + 1
    number = row * width + column - least[row]
    found = np.full(len(begins) * width, -1.0)
    found[number] = 0.0
    merge = np.add if options.align_to_words else np.maximum
    merge.at(found, number, scores)
    spans = np.flatnonzero(found >= 0.0)
    top_k = options.top_k or 1
    if len(spans) > top_k:
        spans = spans[found[spans] >= np.partition(found[spans], -top_k)[-top_k]]
    for span in spans[np.argsort(-found[spans], kind="stable")][:top_k]:
        row, column = divmod(int(span), width)
        yield (int(begins[row]), int(finishes[column + least[row]])), float(found[span])


def _words(alignment: Alignment) -> Sequence[Span]:
    keys = list(zip(alignment.text_ids, alignment.word_ids, strict=True))
    first = {key: token for token, key in reversed(list(enumerate(keys)))}
    last = {key: token for token, key in enumerate(keys)}
    return [
        alignment.offsets[token]
        if word is None
        else (alignment.offsets[first[text, word]][0], alignment.offsets[last[text, word]][1])
        for token, (text, word) in enumerate(keys)
    ]
