"""Patterns: where the regular expressions of a policy match a text, or a text that still grows.

A match that begins `MAX_MATCH` characters before the end of a growing text stays as it is, if no
match of the pattern is longer. So a stream holds this many characters back, and a match counts once
it cannot change.
"""

import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from nunatak_contract.policies import Pattern, compiled
from nunatak_server.outputs.conditions import LOST, UNKNOWN, ConditionState, FoundSpan
from nunatak_server.scheduler.turns import Check, Pace

MAX_MATCH: Final = 256
MAX_STEPS_ON_LOOP: Final = 4_000_000
"""Squares of lengths, for each pattern, that are read without a thread: a pattern such as
`a[^b]*b|a` reads up to the end of the text for each match."""
TURN_S: Final = 0.02
"""Time after which a long search lets other work use the thread."""
HALF: Final = re.compile("[\ud800-\udfff]")
"""One half of a surrogate pair, which has no form in UTF-8."""

Matches = Mapping[Pattern, ConditionState]
"""What each pattern of a policy says about one text."""


def matches_in(patterns: Iterable[Pattern], text: str) -> Matches:
    return {it: _state(_spans(it, text, 0)) for it in patterns}


def unmatched(patterns: Iterable[Pattern], num_texts: int) -> list[Matches]:
    """Return what patterns say about texts that they have not read."""
    return [dict.fromkeys(patterns, UNKNOWN)] * num_texts


async def matches_in_all(
    patterns: Sequence[Pattern], texts: Sequence[str], pace: Pace
) -> tuple[Matches, ...]:
    """Return what the patterns say about each text.

    Raises:
        DeadlineExceededError: the texts are not read in time.
    """
    places = [_Place(it, text, 0) for text in texts for it in patterns]
    states = map(_state, await _found_at(places, pace))
    return tuple({it: next(states) for it in patterns} for _ in texts)


class GrowingMatches:
    """The matches in a text that grows. A look reads the new characters, and few others again."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self._reads_from = dict.fromkeys(patterns, 0)
        self._kept = {it: list[FoundSpan]() for it in self._reads_from}

    def settled(self, text: str, place: int) -> int:
        """Return the last place, at most `place`, before which no further match can begin."""
        return max(0, min(place, len(text) - MAX_MATCH)) if self._reads_from else place

    @property
    def known(self) -> Matches:
        """What is certain of the text as far as it is read; more of it may match."""
        return {
            it: replace(_state(spans), is_complete=False) if spans else UNKNOWN
            for it, spans in self._kept.items()
        }

    async def grow(self, text: str, pace: Pace, *, released: int, takes_open: bool) -> Matches:
        """Return what the patterns say about the text so far.

        Of the matches in released text, one stays, which says that there are matches. `takes_open`
        also counts matches that could still change.

        Raises:
            DeadlineExceededError: the text is not read in time, and is read again next time.
        """
        places = [_Place(it, text, begin) for it, begin in self._reads_from.items()]
        found, settled = dict[Pattern, ConditionState](), self.settled(text, len(text))
        for (pattern, _, begin), spans in zip(places, await _found_at(places, pace), strict=True):
            kept = [it for it in spans if it.start < settled]
            earlier = self._kept[pattern]
            self._kept[pattern] = [
                *([it for it in earlier if it.end > released] or earlier[-1:]),
                *kept,
            ]
            self._reads_from[pattern] = max(begin, settled, *(it.end for it in kept[-1:]))
            found[pattern] = _state((*self._kept[pattern], *(spans[len(kept) :] * takes_open)))
        return found


class _Place(NamedTuple):
    """Where a pattern reads a text from."""

    pattern: Pattern
    text: str
    begin: int


async def _found_at(places: Sequence[_Place], pace: Pace) -> list[list[FoundSpan]]:
    """Return the matches from each place on. A long search has the thread for a turn at a time."""
    found = [list[FoundSpan]() for _ in places]
    searches = _searches(places, found)

    def take_turn(_: Check) -> bool:
        end = time.monotonic() + TURN_S
        return any(time.monotonic() >= end for _ in searches)

    sizes = (max(len(it.text) - it.begin, MAX_MATCH) for it in places)
    if sum(it**2 for it in sizes) <= MAX_STEPS_ON_LOOP:
        deque(searches, maxlen=0)
    else:
        while await pace.on_thread(take_turn):
            pass
    return found


def _searches(places: Sequence[_Place], found: Sequence[list[FoundSpan]]) -> Iterator[None]:
    """Yield after each match, and after each pattern, whose matches go to `found`."""
    for place, spans in zip(places, found, strict=True):
        for span in _spans(*place):
            spans.append(span)
            yield
        yield


def _spans(pattern: Pattern, text: str, begin: int) -> Iterator[FoundSpan]:
    # One character before the begin says whether a word or a line begins there.
    skipped = max(0, begin - 1)
    part = HALF.sub(LOST, text[skipped:])
    for start, end in compiled(pattern.pattern)(part, begin - skipped):
        if start < end:
            yield FoundSpan(start=start + skipped, end=end + skipped, label=pattern.label)


def _state(spans: Iterable[FoundSpan]) -> ConditionState:
    found = tuple(spans)
    return ConditionState(holds=bool(found), score=float(bool(found)), spans=found)
