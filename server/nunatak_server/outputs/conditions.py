"""Conditions: what a task finds in a text for each condition of a policy.

A condition holds if it holds in any window of the text. So each label has its largest score of all
windows, and no window can hide what another window shows.

A task of tokens finds a label in a token if the sum of the probabilities of `B-` and `I-` reaches
the threshold. Without a threshold, the most likely label decides. The found part is the whole word
of the token, because a part of a name must not stay readable.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Final

from nunatak_contract.enums import HeadKind, ProblemType
from nunatak_contract.heads import HeadRecord
from nunatak_contract.policies import Condition, find_misfit, group_of
from nunatak_contract.requests import Input
from nunatak_model import Encoding
from nunatak_model.text.encoding import is_unspaced
from nunatak_server.outputs.outputs import apply_function, default_function, predicted_of, window_of
from nunatak_server.tokenization import Encodings

JOINERS: Final = frozenset(".@-_'\u2019\u2010\u2012\u2013\u2044\u2212+/\\:&=?#%~*\u00b7")
"""Punctuation that joins letters to one word: of addresses, numbers, links and double names. Other
forms of these characters, such as full width, join too."""
LOST: Final = "\ufffd"
"""The character in the place of one that could not be decoded, often a letter."""
MAX_JOINERS: Final = 4
"""Most joiners between two letters of one word, as in `http://host`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSpan:
    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionState:
    """Whether a condition holds for a text; None without an answer that decides it."""

    holds: bool | None
    score: float | None = None
    """The largest score of the condition's labels; None if no answer has one."""
    spans: tuple[FoundSpan, ...] = ()
    misfit: str | None = None
    """Why the task cannot decide about all labels of the condition."""
    num_unread: int = 0
    """Characters and tokens of the text that the task has not read."""
    is_complete: bool = True
    """Whether nothing that is unread or unknown could change the state."""


UNKNOWN: Final = ConditionState(holds=None, is_complete=False)

States = Mapping[Condition, ConditionState]


def states_of(
    head: HeadRecord,
    conditions: Sequence[Condition],
    inputs: Sequence[Input],
    read: Sequence[Encodings],
    logits: Iterable[Sequence[float]],
) -> tuple[States, ...]:
    """Return the states of conditions for each text; arguments as of `outputs_of`."""
    rows = iter(logits)
    return tuple(
        _states(head, conditions, item, encodings, islice(rows, len(encodings)))
        for item, encodings in zip(inputs, read, strict=True)
    )


def _states(
    head: HeadRecord,
    conditions: Sequence[Condition],
    item: Input,
    encodings: Encodings,
    logits: Iterable[Sequence[float]],
) -> States:
    text = item if isinstance(item, str) else ""
    match head.kind, head.problem_type:
        case _ if not encodings:
            # The first window of a growing text is not whole yet.
            found = dict.fromkeys(conditions, UNKNOWN)
        case HeadKind.TOKEN_CLASSIFICATION, _ if text:
            windows = [_tokens(text, *it) for it in zip(encodings, logits, strict=True)]
            found = {it: _in_tokens(head, it, text, windows) for it in conditions}
        case HeadKind.SEQUENCE_CLASSIFICATION, ProblemType() as problem_type:
            function = default_function(problem_type)
            rows = [(row, apply_function(function, row)) for row in logits]
            scores = [own for _, own in rows]
            predicted = frozenset(chain.from_iterable(_labels(head, *row) for row in rows))
            found = {it: _in_windows(head, it, scores, predicted) for it in conditions}
        case _:
            found = dict.fromkeys(conditions, UNKNOWN)
    num_unread = sum(it.part.num_left_out + it.part.num_unread for it in encodings)
    return {
        it: replace(state, misfit=find_misfit(it, head, None), num_unread=num_unread)
        for it, state in found.items()
    }


def _labels(head: HeadRecord, logits: Sequence[float], scores: Sequence[float]) -> tuple[str, ...]:
    match predicted_of(logits, scores, head):
        case str() as label:
            return (label,)
        case tuple() as labels:
            return labels
        case _:
            return ()


def _in_windows(
    head: HeadRecord,
    condition: Condition,
    windows: Sequence[Sequence[float]],
    predicted: frozenset[str],
) -> ConditionState:
    named = [place for place, label in enumerate(head.labels) if label in condition.labels]
    if not named:
        return UNKNOWN
    score = max(scores[place] for scores in windows for place in named)
    if condition.threshold is None:
        return ConditionState(holds=not predicted.isdisjoint(condition.labels), score=score)
    return ConditionState(holds=score >= condition.threshold, score=score)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    start: int
    end: int
    scores: list[float]


def _tokens(text: str, encoding: Encoding, logits: Sequence[float]) -> list[_Token]:
    window = window_of(encoding, logits)
    alignment = window.alignment
    places = (_trimmed(text, *it) for it in alignment.offsets)
    return [
        _Token(start=start, end=end, scores=scores)
        for origin, (start, end), scores in zip(
            alignment.text_ids, places, window.scores, strict=True
        )
        if origin is not None and start < end
    ]


def _in_tokens(
    head: HeadRecord, condition: Condition, text: str, windows: Sequence[Sequence[_Token]]
) -> ConditionState:
    groups = [group_of(label) for label in head.labels]
    wanted = {
        label: [place for place, group in enumerate(groups) if group == label]
        for label in condition.labels
        if label in groups
    }
    if not wanted:
        return UNKNOWN
    best, found = 0.0, list[FoundSpan]()
    for window in windows:
        adjacent: str | None = None
        for token in window:
            score, label = max(
                (sum(token.scores[it] for it in own), label) for label, own in wanted.items()
            )
            best = max(best, score)
            likely = token.scores.index(max(token.scores))
            if condition.threshold is None:
                label, holds = groups[likely], groups[likely] in wanted
            else:
                holds = score >= condition.threshold
            if holds and label == adjacent and not head.labels[likely].startswith("B-"):
                found[-1] = replace(found[-1], end=max(found[-1].end, token.end))
            elif holds:
                found.append(FoundSpan(start=token.start, end=token.end, label=label))
            adjacent = label if holds else None
    return ConditionState(holds=bool(found), score=best, spans=tuple(whole_words(text, found)))


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Return a range without white space at its ends; some tokens include the space before them."""
    part = text[start:end]
    start = end - len(part.lstrip())
    return start, start + len(part.strip())


def whole_words(text: str, spans: Iterable[FoundSpan]) -> Iterator[FoundSpan]:
    """Yield spans that cover whole words, joined where they overlap, in linear time.

    A word ends at white space, at punctuation that joins nothing, and at each letter of a script
    without spaces. Combining marks and invisible characters belong to the character before them.
    Joined spans have the label of the span that begins first, and then of the longest.
    """
    last: FoundSpan | None = None
    for span in sorted(spans, key=lambda it: (it.start, -it.end, it.label)):
        if last is not None and span.end <= last.end:
            continue
        begin = 0 if last is None else last.end
        start = span.start if span.start < begin else _word_start(text, span.start, least=begin)
        end = _word_end(text, span.end)
        if last is not None and start < last.end:
            last = replace(last, end=end)
            continue
        if last is not None:
            yield last
        last = FoundSpan(start=start, end=end, label=span.label)
    if last is not None:
        yield last


def parts_words(text: str, place: int) -> bool:
    """Return whether no span of whole words can reach across a place, whatever comes after."""
    before, after = text[place - 1 : place], text[place : place + 1]
    if not before or not after or before.isspace() or after.isspace():
        return True
    return not (_may_join(before) or _may_join(after) or _is_joined(before, after))


def _word_end(text: str, end: int) -> int:
    size = len(text)
    while True:
        while end < size and _clings(text[end]):
            end += 1
        after = end
        while after < min(size, end + MAX_JOINERS) and _may_join(text[after]):
            after += 1
        if after == size or not _is_joined(text[end - 1], text[after]):
            return end
        end = after + 1


def _word_start(text: str, start: int, *, least: int) -> int:
    while True:
        while start > least and _clings(text[start]) and not text[start - 1].isspace():
            start -= 1
        before = start
        while before > max(least, start - MAX_JOINERS) and _may_join(text[before - 1]):
            before -= 1
        if before == least or not _is_joined(text[before - 1], text[start]):
            return start
        start = before - 1


def _may_join(character: str) -> bool:
    plain = unicodedata.normalize("NFKC", character)
    return plain in JOINERS or _clings(character)


def _is_joined(one: str, other: str) -> bool:
    return all(
        (unicodedata.category(it)[0] in "LMN" or _may_join(it)) and not is_unspaced(it)
        for it in (one, other)
    )


def _clings(character: str) -> bool:
    """Return whether a character belongs to the one before it: a mark, or no character to see."""
    category = unicodedata.category(character)
    if category == "Cc":
        return not character.isspace()
    return category[0] == "M" or category in {"Cf", "Cn", "Co"} or character == LOST
