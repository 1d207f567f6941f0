"""Token classification: labelled tokens, words or groups of words, with their place in the text.

`Window` holds the scores of one window of a text, token by token. The strategies follow every rule
of transformers' `TokenClassificationPipeline`. The strategy `word` is an addition: the first token
of each word gives the word's label, as in training.

Extractive question answering: the parts of a context that answer a question.

Each token of the context, and the first token of the window, has a probability as the start and
one as the end of the answer. The score of a pair of tokens i <= j is the product of both. "No
answer" is the first token twice (Devlin et al. 2019, arXiv:1810.04805, sec. 4.2 and 4.3). The
pipeline of transformers computes the same scores.

Where answers are whole words, the score of an answer is the sum over the pairs in these words. Over
several windows, an answer has its largest score, and "no answer" has its least.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import TypedDict

import numpy as np

from nunatak_contract.enums import AggregationStrategy
from nunatak_contract.requests import Parameters
from nunatak_model import Alignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    alignment: Alignment
    scores: tuple[list[float], ...]
    """The probability of each label, by token."""


Join = Callable[[Sequence[str]], str]
"""Joins tokens to running text."""


class TokenEntity(TypedDict):
    """One labelled token or word; `index` is its position in the window or text."""

    entity: str
    score: float
    index: int
    word: str
    start: int
    end: int


class EntityGroup(TypedDict):
    """Adjacent tokens or words with one label, which is shown without `B-` or `I-`."""

    entity_group: str
    score: float
    word: str
    start: int
    end: int


Entity = TokenEntity | EntityGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    index: int
    word_id: int | None
    spelling: str
    continues_word: bool
    start: int
    end: int
    scores: list[float]


def find_entities(
    windows: Iterable[Window], *, labels: Sequence[str], join: Join, options: Parameters
) -> list[Entity]:
    """Label the tokens of a text, and combine them by the strategy of the caller.

    Where windows overlap, the longer of two entities stays, then the one of the better score.
    """
    ignored = frozenset(options.ignore_labels)
    taken, found = list[Window](), list[list[Entity]]()
    for window in windows:
        taken.append(window)
        found.append(
            [
                entity
                for entity in _entities(_tokens(window), labels, join, options.aggregation_strategy)
                if (entity["entity_group"] if "entity_group" in entity else entity["entity"])
                not in ignored
            ]
        )
    if len(taken) == 1:
        return found[0]
    match options.aggregation_strategy:
        case AggregationStrategy.NONE:
            return _each_once(found, _tokens_before(taken))
        case AggregationStrategy.WORD:
            return _each_once(found, [0] * len(taken))
        case _:
            return _without_overlaps(list(chain.from_iterable(found)))


def _tokens(window: Window) -> list[_Token]:
    alignment = window.alignment
    return [
        _Token(
            index=index,
            word_id=alignment.word_ids[index],
            spelling=alignment.tokens[index],
            continues_word=alignment.continues_word[index],
            start=alignment.offsets[index][0],
            end=alignment.offsets[index][1],
            scores=scores,
        )
        for index, scores in enumerate(window.scores)
        if alignment.text_ids[index] is not None
    ]


def _entities(
    tokens: Sequence[_Token], labels: Sequence[str], join: Join, strategy: AggregationStrategy
) -> Sequence[Entity]:
    match strategy:
        case AggregationStrategy.NONE:
            return [_single(token, labels) for token in tokens]
        case AggregationStrategy.SIMPLE:
            return _groups([_single(token, labels) for token in tokens], join)
        case AggregationStrategy.WORD:
            words = [list(group) for _, group in groupby(tokens, lambda token: token.word_id)]
            return [_word(word, word[0].scores, labels, join) for word in words]
        case AggregationStrategy.FIRST | AggregationStrategy.AVERAGE | AggregationStrategy.MAX:
            words = _running_words(tokens)
            return _groups(
                [_word(word, _word_scores(word, strategy), labels, join) for word in words], join
            )


def _single(token: _Token, labels: Sequence[str]) -> TokenEntity:
    score = max(token.scores)
    return TokenEntity(
        entity=labels[token.scores.index(score)],
        score=score,
        index=token.index,
        word=token.spelling,
        start=token.start,
        end=token.end,
    )


def _word(
    tokens: Sequence[_Token], scores: list[float], labels: Sequence[str], join: Join
) -> TokenEntity:
    score = max(scores)
    first, last = tokens[0], tokens[-1]
    return TokenEntity(
        entity=labels[scores.index(score)],
        score=score,
        index=first.index if first.word_id is None else first.word_id,
        word=join([token.spelling for token in tokens]),
        start=first.start,
        end=last.end,
    )


def _word_scores(tokens: Sequence[_Token], strategy: AggregationStrategy) -> list[float]:
    match strategy:
        case AggregationStrategy.AVERAGE:
            by_label = zip(*(token.scores for token in tokens), strict=True)
            return [sum(scores) / len(tokens) for scores in by_label]
        case AggregationStrategy.MAX:
            return max(tokens, key=lambda token: max(token.scores)).scores
        case _:
            return tokens[0].scores


def _running_words(tokens: Sequence[_Token]) -> list[list[_Token]]:
    words: list[list[_Token]] = []
    for token in tokens:
        if words and token.continues_word:
            words[-1].append(token)
        else:
            words.append([token])
    return words


def _groups(pieces: Sequence[TokenEntity], join: Join) -> list[EntityGroup]:
    groups: list[list[TokenEntity]] = []
    for piece in pieces:
        is_begin, tag = _tag(piece["entity"])
        if groups and not is_begin and tag == _tag(groups[-1][-1]["entity"])[1]:
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return [_group(group, join) for group in groups]


def _tag(label: str) -> tuple[bool, str]:
    return label.startswith("B-"), label[2:] if label.startswith(("B-", "I-")) else label


def _group(pieces: Sequence[TokenEntity], join: Join) -> EntityGroup:
    return EntityGroup(
        entity_group=pieces[0]["entity"].split("-", 1)[-1],
        score=sum(piece["score"] for piece in pieces) / len(pieces),
        word=join([piece["word"] for piece in pieces]),
        start=pieces[0]["start"],
        end=pieces[-1]["end"],
    )


def _tokens_before(windows: Sequence[Window]) -> list[int]:
    before = [0]
    for window, following in pairwise(windows):
        held = sum(text is not None for text in window.alignment.text_ids)
        before.append(before[-1] + held - following.alignment.num_repeated)
    return before


def _each_once(found: Sequence[Sequence[Entity]], before: Sequence[int]) -> list[Entity]:
    kept: dict[int, Entity] = {}
    for entities, num_before in zip(found, before, strict=True):
        for entity in entities:
            if "index" in entity:
                number = num_before + entity["index"]  # pyrefly: ignore[unsupported-operation] - a number
                kept[number] = max(kept.get(number, entity), entity, key=_claim)
    return [entity for _, entity in sorted(kept.items(), key=itemgetter(0))]


def _without_overlaps(entities: Sequence[Entity]) -> list[Entity]:
    kept: list[Entity] = []
    for entity in sorted(entities, key=lambda found: found["start"]):
        if kept and entity["start"] < kept[-1]["end"]:
            kept[-1] = max(kept[-1], entity, key=_claim)
        else:
            kept.append(entity)
    return kept


def _claim(entity: Entity) -> tuple[int, float]:
    return entity["end"] - entity["start"], entity["score"]


NO_ANSWER = (0, 0)

Span = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanWindow:
    """The probabilities that the answer begins or ends at token 0 or at a token of the context."""

    alignment: Alignment
    starts: Mapping[int, float]
    ends: Mapping[int, float]


class AnswerScore(TypedDict):
    """A part of the context, with positions in characters; empty for "no answer"."""

    answer: str
    score: float
    start: int
    end: int


def best_answers(
    windows: Iterable[SpanWindow], context: str, *, options: Parameters
) -> list[AnswerScore]:
    """Return the best parts of the context, best first; none if the context has no tokens."""
    scores = dict[Span, float]()
    no_answer = 1.0
    for window in windows:
        no_answer = min(no_answer, window.starts[0] * window.ends[0])
        # No other span of the window is among the best of all windows.
        for span, score in _best_spans(window, options):
            scores[span] = max(score, scores.get(span, score))
    if options.handle_impossible_answer:
        scores[NO_ANSWER] = no_answer
    best = heapq.nsmallest(options.top_k or 1, scores, key=lambda span: (-scores[span], span))
    return [
        AnswerScore(answer=context[begin:end], score=scores[begin, end], start=begin, end=end)
        for begin, end in best
    ]


def _best_spans(window: SpanWindow, options: Parameters) -> Iterator[tuple[Span, float]]:
    alignment, (_, *tokens) = window.alignment, window.starts
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
    scores = np.array([window.starts[token] for token in tokens])[first]
    scores *= np.array([window.ends[token] for token in tokens])[last]
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
