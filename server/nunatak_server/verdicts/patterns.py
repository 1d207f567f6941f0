"""Patterns: where the regular expressions of a policy match a text, or a text that still grows.

A pattern reads a text as it is written and in a normal form: characters that show nothing, or that
show a letter or a digit in another width, hide no match from a reader. It reads the normal form
also with the letters of tags, which show nothing to people, and a letter to a language model; and
both of these composed, as the letters of a ligature, and with a letter and its marks as one.

A match that begins `MAX_MATCH` characters before the end of a growing text stays as it is, if no
match of the pattern is longer. So a stream holds this many characters back, and a match counts once
it cannot change. Characters that show nothing, and marks, do not count: they could make any match
longer.
"""

import re
import time
import unicodedata
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, chain, islice, pairwise
from typing import Final, NamedTuple

from nunatak_contract.policies import Pattern, compiled
from nunatak_model.text.encoding import SELECTOR
from nunatak_server.outputs.conditions import LOST, UNKNOWN, ConditionState, FoundSpan
from nunatak_server.scheduler.turns import Check, Pace

MAX_MATCH: Final = 256
MAX_STEPS_ON_LOOP: Final = 40_000_000
"""Squares of lengths times the size of the pattern that are read without a thread: each match of a
pattern such as `a[^b]*b|a` reads up to the end, and RE2 may go through the whole pattern for each
character."""
LEAST_CHARS: Final = 64
"""Characters that cost as much as any search."""
TURN_S: Final = 0.02
"""Time after which a long search lets other work use the thread."""
HALF: Final = re.compile("[\ud800-\udfff]")
"""One half of a surrogate pair, which has no form in UTF-8."""
UNSEEN: Final = re.compile(
    "[\x1c-\x1f\u0305\u0332-\u0338\u033f\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f"
    "\u2065\u20d0-\u20ff\u3164\uffa0\ufff0-\ufff8"
    f"{SELECTOR}\U000e0000-\U000e0fff]"
)
"""What shows nothing by Unicode, also where no character is assigned yet, and is no control or
format; controls that Python counts as white space; and lines and frames around a letter."""
SHOWN: Final = {
    **dict.fromkeys(map(ord, "\x0b\x85\u1680\u2028\u2029\u2800"), " "),
    **dict.fromkeys(map(ord, "\u2018\u2019\u201a\u201b"), "'"),
    **dict.fromkeys(map(ord, "\u201c\u201d\u201e\u201f"), '"'),
    0x2212: "-",
}
"""What NFKC leaves: white space for which RE2 has no class, quotes, and a minus."""
LETTER: Final = re.compile(
    r"(?:(?:CROSSED )?NEGATIVE (?:CIRCLED|SQUARED) LATIN CAPITAL LETTER|LATIN LETTER SMALL CAPITAL"
    r"|PARENTHESIZED LATIN (?:CAPITAL|SMALL) LETTER|REGIONAL INDICATOR SYMBOL LETTER) ([A-Z])"
)
"""Names of plain letters in a frame, or in a form that is no letter of its own in a language."""
TAGS: Final = {0xE0000 + it: chr(it) for it in range(ord(" "), 0x7F)}
"""The letters of tags."""
READINGS: Final = range(5)
"""As written, in the normal form, with the letters of tags, and the last two composed."""
MAX_CLUSTER: Final = 64
"""Most characters that are read as one: to put marks in order takes the square of their number."""
MAX_KNOWN: Final = 4096
"""Characters whose normal form is kept."""
NO_MATCH: Final = ConditionState(holds=False, score=0.0)

Matches = Mapping[Pattern, ConditionState]
"""What each pattern of a policy says about one text."""


class _Search(NamedTuple):
    """A pattern, and the form in which it reads texts."""

    pattern: Pattern
    reading: int


class _Place(NamedTuple):
    """From where a text is searched."""

    search: _Search
    text: str
    begin: int
    inside: int = 0
    """Characters that the reading has from the begin on, and that a match before has read."""


class _Match(NamedTuple):
    span: FoundSpan
    behind: tuple[int, int]
    """The place and the characters inside from where the next match may begin."""


def matches_in(patterns: Iterable[Pattern], text: str) -> Matches:
    found = {_Place(it, text, 0): list[_Match]() for it in _searches(patterns, text)}
    deque(_steps(found), maxlen=0)
    return _states({place.search: matches for place, matches in found.items()})


def unmatched(patterns: Iterable[Pattern], num_texts: int) -> list[Matches]:
    """Return what patterns say about texts that they have not read."""
    return [dict.fromkeys(patterns, UNKNOWN)] * num_texts


async def matches_in_all(
    patterns: Sequence[Pattern],
    texts: Sequence[str],
    pace: Pace,
    *,
    begins: Sequence[Mapping[Pattern, int]] = (),
) -> tuple[Matches, ...]:
    """Return what the patterns say about each text.

    `begins` says for each text from where a pattern reads; else it reads from the begin.

    Raises:
        DeadlineExceededError: the texts are not read in time.
    """
    states, read = list[Matches](), list(zip(texts, begins or [{}] * len(texts), strict=True))

    def places(text: str, begin: Mapping[Pattern, int]) -> Iterator[_Place]:
        return (_Place(it, text, begin.get(it.pattern, 0)) for it in _searches(patterns, text))

    def steps() -> Iterator[None]:
        for each in read:
            found = {it: list[_Match]() for it in places(*each)}
            yield from _steps(found)
            states.append(_states({it.search: matches for it, matches in found.items()}))
            yield

    await _take(steps(), chain.from_iterable(places(*it) for it in read), pace)
    return tuple(states)


class GrowingMatches:
    """The matches in a text that grows. A look reads the new characters, and few others again."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self._reads_from = dict.fromkeys(_searches(patterns, ""), (0, 0))
        self._kept = {it: list[_Match]() for it in self._reads_from}
        self._settled = 0

    def settled(self, text: str, place: int) -> int:
        """Return the last place, at most `place`, before which no further match can begin."""
        if not self._reads_from:
            return place
        shown = (it for it in range(len(text), 0, -1) if stands_alone(text[it - 1]))
        # Further marks may change the last character, which says whether a word ends before it.
        return min(place, next(islice(shown, MAX_MATCH + 1, None), 0))

    @property
    def known(self) -> Matches:
        """The certain matches in the text that is read. The rest of the text may have more."""
        return {
            it: replace(state, is_complete=False) if state.holds else UNKNOWN
            for it, state in _states(self._kept).items()
        }

    async def grow(self, text: str, pace: Pace, *, released: int, takes_open: bool) -> Matches:
        """Return what the patterns say about the text so far.

        Of the matches in released text, one stays, which says that there are matches. `takes_open`
        also counts matches that could still change.

        Raises:
            DeadlineExceededError: the text is not read in time, and is read again next time.
        """
        for it in _searches([it.pattern for it in self._reads_from], text[self._settled :]):
            # So far, each reading was the text as it is written.
            self._reads_from.setdefault(it, self._reads_from[it._replace(reading=0)])
            self._kept.setdefault(it, self._kept[it._replace(reading=0)])
        places = (_Place(it, text, *begin) for it, begin in self._reads_from.items())
        found = {it: list[_Match]() for it in places}
        await _take(_steps(found), found, pace)
        now, settled = dict[_Search, Sequence[_Match]](), self.settled(text, len(text))
        self._settled = settled
        for (search, _, begin, inside), matches in found.items():
            kept = [it for it in matches if it.span.start < settled]
            earlier = self._kept[search]
            self._kept[search] = [
                *([it for it in earlier if it.span.end > released] or earlier[-1:]),
                *kept,
            ]
            behind = (it.behind for it in kept[-1:])
            self._reads_from[search] = max((begin, inside), (settled, 0), *behind)
            now[search] = (*self._kept[search], *(matches[len(kept) :] * takes_open))
        return _states(now)


def _searches(patterns: Iterable[Pattern], text: str) -> list[_Search]:
    """Return the searches of patterns in a text: one, if the text is its own normal form."""
    own = tuple(patterns)
    is_normal = text.translate(NORMAL) == text and unicodedata.is_normalized("NFKC", text)
    return [_Search(it, reading) for reading in READINGS[: 1 if is_normal else None] for it in own]


async def _take(steps: Iterator[None], places: Iterable[_Place], pace: Pace) -> None:
    if any(it > MAX_STEPS_ON_LOOP for it in accumulate(map(_num_steps, places))):
        await in_turns(steps, pace)
    else:
        deque(steps, maxlen=0)


async def in_turns(steps: Iterator[None], pace: Pace) -> None:
    """Take steps on the thread, which others may use after each turn.

    Raises:
        DeadlineExceededError: not all steps are taken in time.
    """

    def take_turn(_: Check) -> bool:
        end = time.monotonic() + TURN_S
        return any(time.monotonic() >= end for _ in steps)

    while await pace.on_thread(take_turn):
        pass


def _num_steps(place: _Place) -> int:
    num_chars = max(len(place.text) - place.begin, LEAST_CHARS)
    return num_chars**2 * compiled(place.search.pattern.pattern).size


def _steps(found: Mapping[_Place, list[_Match]]) -> Iterator[None]:
    """Add its matches to each place, and yield after each match and each place."""
    readings = dict[tuple[str, int], Sequence[_Reading]]()
    known = dict[tuple[Pattern, _Reading, int], list[_Match]]()
    for place, matches in found.items():
        where = place.text, place.begin
        if where not in readings:
            readings[where] = _readings(*where)
        pattern, reading = place.search
        search = pattern, readings[where][reading], place.inside
        if search in known:
            matches.extend(known[search])
        else:
            known[search] = matches
            for match in _matches(*search):
                matches.append(match)
                yield
        yield


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    """What a pattern reads of a part of a text."""

    text: str
    starts: Sequence[int]
    """The place in the part where each character begins."""
    lasts: Sequence[int]
    """The place of the last character of the part that each character stands for."""
    begin: int
    """The place in the part from which on matches may begin."""
    skipped: int
    """Characters of the whole text before the part."""


def _matches(pattern: Pattern, reading: _Reading, inside: int) -> Iterator[_Match]:
    skipped, starts = reading.skipped, reading.starts
    begin = bisect_left(starts, reading.begin) + inside
    for start, end in compiled(pattern.pattern).find(reading.text, begin):
        first, last = starts[start] + skipped, reading.lasts[end - 1] + skipped
        behind = last + 1, 0
        if end < len(starts) and starts[end] == starts[end - 1]:
            behind = starts[end] + skipped, end - bisect_left(starts, starts[end])
        yield _Match(FoundSpan(start=first, end=last + 1, label=pattern.label), behind)


def _readings(text: str, begin: int) -> Sequence[_Reading]:
    """Return what patterns read of a text from a place on, in the order of `READINGS`."""
    # One character before the begin says whether a word or a line begins there. It shows something,
    # in the normal form too: a text settles and a match ends behind such a character.
    skipped = max(0, begin - 1)
    part = HALF.sub(LOST, text[skipped:])
    places = range(len(part))
    written = _Reading(part, places, places, begin - skipped, skipped)
    forms = part, part.translate(TAGS)
    normal = {it: _normal(written, it) for it in forms}
    composed = {it: _composed(normal[it]) for it in forms}
    return written, *(each[it] for each in (normal, composed) for it in forms)


def _normal(written: _Reading, part: str) -> _Reading:
    shown = part.translate(NORMAL)
    if shown == written.text:
        return written
    places = [it for it, character in enumerate(part) if NORMAL[ord(character)]]
    return replace(written, text=shown, starts=places, lasts=places)


def _composed(normal: _Reading) -> _Reading:
    """Return a reading in which marks belong to their letter, and ligatures are letters."""
    text = normal.text
    if unicodedata.is_normalized("NFKC", text):
        return normal
    cuts = [*(it for it, shown in enumerate(text) if not it or stands_alone(shown)), len(text)]
    forms, starts, lasts = list[str](), list[int](), list[int]()
    for begin, end in pairwise(cuts):
        cluster = text[begin:end]
        form = unicodedata.normalize("NFKC", cluster) if len(cluster) <= MAX_CLUSTER else cluster
        is_same = form == cluster
        forms.append(form)
        starts += normal.starts[begin:end] if is_same else [normal.starts[begin]] * len(form)
        lasts += normal.lasts[begin:end] if is_same else [normal.lasts[end - 1]] * len(form)
    return replace(normal, text="".join(forms), starts=starts, lasts=lasts)


@lru_cache(MAX_KNOWN)
def stands_alone(character: str) -> bool:
    """Say whether a character shows something, and is no mark or end of the syllable before it."""
    form = NORMAL[ord(character)]
    return bool(form) and unicodedata.category(form)[0] != "M" and not "\u1160" <= form <= "\u11ff"


class _Normal(dict[int, str]):
    """What characters show: what they stand for by NFKC, if this is one character, or nothing."""

    def __missing__(self, point: int) -> str:
        character = form = chr(point)
        category, name = unicodedata.category(character), unicodedata.name(character, "")
        is_control = category in {"Cc", "Cf"} and not character.isspace()
        if point in SHOWN:
            form = SHOWN[point]
        elif is_control or UNSEEN.fullmatch(character):
            form = ""
        elif category == "Pd":
            form = "-"
        elif (digit := unicodedata.digit(character, None)) is not None:
            form = str(digit)
        elif letter := LETTER.fullmatch(name):
            form = letter[1].lower() if "SMALL" in name else letter[1]
        elif len(other := unicodedata.normalize("NFKC", character)) == 1:
            form = other
        if len(self) < MAX_KNOWN:
            self[point] = form
        return form


NORMAL: Final = _Normal()


def _states(found: Mapping[_Search, Sequence[_Match]]) -> Matches:
    readings = defaultdict[Pattern, list[Sequence[FoundSpan]]](list)
    for search, matches in found.items():
        readings[search.pattern].append([it.span for it in matches])
    return {it: state_of(*each) for it, each in readings.items()}


def state_of(*readings: Sequence[FoundSpan]) -> ConditionState:
    """Return what a pattern says that matches at places of several readings."""
    if not any(readings):
        return NO_MATCH
    found = tuple(readings[0])
    if any(it != readings[0] for it in readings):
        each = {*chain.from_iterable(readings)}
        found = tuple(sorted(each, key=lambda it: (it.start, it.end)))
    return ConditionState(holds=True, score=1.0, spans=found)
