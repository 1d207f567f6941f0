"""Patterns: where the regular expressions of a policy match a text, or a text that still grows.

A match that begins `MAX_MATCH` characters before the end of a growing text stays as it is, if no
match of the pattern is longer. So a stream holds this many characters back, and a match counts once
it cannot change.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from nunatak_contract.policies import Pattern, compiled
from nunatak_server.outputs.conditions import LOST, UNKNOWN, ConditionState, FoundSpan

MAX_MATCH: Final = 256
MAX_STEPS_ON_LOOP: Final = 4_000_000
"""Squares of lengths, for each pattern, that are read without a thread: a pattern such as
`a[^b]*b|a` reads up to the end of the text for each match."""
HALF: Final = re.compile("[\ud800-\udfff]")
"""One half of a surrogate pair, which has no form in UTF-8."""

FoundT = TypeVar("FoundT")
Matches = Mapping[Pattern, ConditionState]
"""What each pattern of a policy says about one text."""


def matches_in(patterns: Iterable[Pattern], text: str) -> Matches:
    return {it: _state(_spans(it, text, 0)) for it in patterns}


def unmatched(patterns: Iterable[Pattern], num_texts: int) -> list[Matches]:
    """Return what patterns say about texts that they have not read."""
    return [dict.fromkeys(patterns, UNKNOWN)] * num_texts


async def matches_in_all(patterns: Sequence[Pattern], texts: Sequence[str]) -> tuple[Matches, ...]:
    def found() -> tuple[Matches, ...]:
        return tuple(matches_in(patterns, text) for text in texts)

    return await _on_loop_or_thread(found, len(patterns), map(len, texts))


class GrowingMatches:
    """The matches in a text that grows. A look reads the new characters, and few others again."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self._reads_from = dict.fromkeys(patterns, 0)
        self._kept = {it: list[FoundSpan]() for it in self._reads_from}

    def settled(self, text: str, place: int) -> int:
        """Return the last place, at most `place`, before which no further match can begin."""
        return max(0, min(place, len(text) - MAX_MATCH)) if self._reads_from else place

    async def grow(self, text: str, *, released: int, takes_open: bool) -> Matches:
        """Return what the patterns say about the text so far.

        Of the matches in released text, one stays, which says that there are matches. `takes_open`
        also counts matches that could still change.
        """

        def found() -> Matches:
            return self._grown(text, released=released, takes_open=takes_open)

        num_chars = len(text) - min(self._reads_from.values(), default=len(text))
        return await _on_loop_or_thread(found, len(self._reads_from), [num_chars])

    def _grown(self, text: str, *, released: int, takes_open: bool) -> Matches:
        found, settled = dict[Pattern, ConditionState](), self.settled(text, len(text))
        for pattern, begin in self._reads_from.items():
            spans = list(_spans(pattern, text, begin))
            kept = [it for it in spans if it.start < settled]
            earlier = self._kept[pattern]
            self._kept[pattern] = [
                *([it for it in earlier if it.end > released] or earlier[-1:]),
                *kept,
            ]
            self._reads_from[pattern] = max(begin, settled, *(it.end for it in kept[-1:]))
            found[pattern] = _state((*self._kept[pattern], *(spans[len(kept) :] * takes_open)))
        return found


async def _on_loop_or_thread(
    found: Callable[[], FoundT], num_patterns: int, sizes: Iterable[int]
) -> FoundT:
    if num_patterns * sum(max(it, MAX_MATCH) ** 2 for it in sizes) <= MAX_STEPS_ON_LOOP:
        return found()
    return await asyncio.to_thread(found)


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
