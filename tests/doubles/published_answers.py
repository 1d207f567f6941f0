"""The answers of transformers' question-answering pipeline, restated from its release 4.57.

Release 5, which the tests install, has no such pipeline any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

Floats = NDArray[np.float64]
MASKED = -10000.0


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
