"""Token classification: labelled tokens, words or groups of words, with their place in the text.

`Window` holds the logits of one window of a text, token by token. The strategies follow every rule
of transformers' `TokenClassificationPipeline`. The strategy `word` is an addition: the first token
of each word gives the word's label, as in training.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import TypedDict

from nunatak_contract.enums import AggregationStrategy
from nunatak_contract.requests import Parameters
from nunatak_model import Alignment, Encoding
from nunatak_server.outputs.scores import softmax


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    alignment: Alignment
    logits: tuple[Sequence[float], ...]


def window_of(encoding: Encoding, logits: Sequence[float]) -> Window:
    alignment = encoding.alignment
    assert alignment is not None, "heads that read tokens need aligned encodings"  # noqa: S101
    width = len(logits) // encoding.num_tokens
    return Window(
        alignment=alignment,
        logits=tuple(logits[begin : begin + width] for begin in range(0, len(logits), width)),
    )


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
            scores=softmax(logits),
        )
        for index, logits in enumerate(window.logits)
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
                number = num_before + entity["index"]
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
