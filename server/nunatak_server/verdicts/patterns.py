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
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from itertools import accumulate, chain, islice, pairwise, product
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

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
NO_ASCII: Final = re.compile("[\\x00-\\x7f]?[^\\x00-\\x7f]+")
"""What may have another form: letters of ASCII alone are never composed with the next one."""
MAX_CLUSTER: Final = 64
"""Most characters that are read as one: to put marks in order takes the square of their number."""
MAX_KNOWN: Final = 4096
"""Characters whose normal form is kept."""
MAX_APART: Final = 4
"""Patterns that are searched one by one at once."""
MAX_IN_ONE: Final = 32
"""Patterns that are searched as one."""
MAX_SIZE_OF_ONE: Final = 2048
"""Steps for one character. RE2 takes many times as long once it has no memory for its states."""
STEPS_OF_A_CHAR: Final = 8
"""Of a search that ends at the first match, at worst."""
MAX_GROUPS: Final = 16
"""Sets of patterns that are kept as groups."""
NO_MATCH: Final = ConditionState(holds=False, score=0.0)

Item = TypeVar("Item")
Matches = Mapping[Pattern, ConditionState]
"""What each pattern of a policy says about one text."""


class _Search(NamedTuple):
    """A pattern, and the form in which it reads texts."""

    pattern: Pattern
    reading: int


@dataclass(frozen=True, eq=False)
class _Group:
    """Patterns that are first searched as one, because most texts have a match of none of them."""

    patterns: tuple[Pattern, ...]

    @cached_property
    def no_match(self) -> Matches:
        return dict.fromkeys(self.patterns, NO_MATCH)

    @cached_property
    def as_one(self) -> str | None:
        """A pattern that matches wherever one of them does; None if they are searched in halves."""
        if len(self.patterns) > MAX_IN_ONE:
            return None
        as_one = "|".join(f"(?:{it.pattern})" for it in self.patterns)
        size = sum(compiled(it.pattern).size for it in self.patterns)
        # A quotation that ends with its pattern would go on in the next one.
        if size > MAX_SIZE_OF_ONE or r"\Q" in as_one:
            return None
        try:
            compiled(as_one)
        except ValueError:
            # One name stands in two of them, for example.
            return None
        return as_one

    @cached_property
    def halves(self) -> "Sequence[_Group]":
        half = len(self.patterns) // 2
        return _Group(self.patterns[:half]), _Group(self.patterns[half:])


class _Match(NamedTuple):
    span: FoundSpan
    behind: tuple[int, int]
    """The place and the characters inside from where the next match may begin."""


_Found = dict[_Search, list[_Match]]
_group: Final = lru_cache(MAX_GROUPS)(_Group)


def matches_in(patterns: Iterable[Pattern], text: str) -> Matches:
    group, num_readings, found = _group(tuple(patterns)), _num_readings(text), _Found()
    deque(_steps(group, text, num_readings, found), maxlen=0)
    return _states(group, num_readings, found)


def unmatched(patterns: Iterable[Pattern], num_texts: int) -> list[Matches]:
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
    group, states = _group(tuple(patterns)), list[Matches]()

    def steps() -> Iterator[int]:
        for text, begin in zip(texts, begins or [{}] * len(texts), strict=True):
            num_readings, found = _num_readings(text), _Found()
            own = product(begin, range(num_readings))
            later = {_Search(it, reading): (begin[it], 0) for it, reading in own}
            yield from _steps(group, text, num_readings, found, later=later)
            states.append(_states(group, num_readings, found))
            yield 0

    await _take(steps(), pace)
    return tuple(states)


class GrowingMatches:
    """The matches in a text that grows. A look reads the new characters, and few others again."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self._group = _group(tuple(patterns))
        self._num_readings = 1
        self._kept = _Found()
        self._reads_from = dict[_Search, tuple[int, int]]()
        """From where searches go on that have matched behind what is settled."""
        self._settled = 0

    def settled(self, text: str, place: int) -> int:
        """Return the last place, at most `place`, before which no further match can begin."""
        if not self._group.patterns:
            return place
        shown = (it for it in range(len(text), 0, -1) if stands_alone(text[it - 1]))
        # Further marks may change the last character, which says whether a word ends before it.
        return min(place, next(islice(shown, MAX_MATCH + 1, None), 0))

    @property
    def known(self) -> Matches:
        """The certain matches in the text that is read. The rest of the text may have more."""
        return {
            it: replace(state, is_complete=False) if state.holds else UNKNOWN
            for it, state in _states(self._group, self._num_readings, self._kept).items()
        }

    async def grow(self, text: str, pace: Pace, *, released: int, takes_open: bool) -> Matches:
        """Return what the patterns say about the text so far.

        Of the matches in released text, one stays, which says that there are matches. `takes_open`
        also counts matches that could still change.

        Raises:
            DeadlineExceededError: the text is not read in time, and is read again next time.
        """
        group, settled = self._group, self.settled(text, len(text))
        if self._num_readings < _num_readings(text[self._settled :]):
            # So far, each reading was the text as it is written.
            self._num_readings = len(READINGS)
            self._kept = _in_each_reading(self._kept)
            self._reads_from = _in_each_reading(self._reads_from)
        found, now = _Found(), dict[_Search, Sequence[_Match]]()
        # A turn that was late may still read the last places.
        later = dict(self._reads_from)
        steps = _steps(group, text, self._num_readings, found, self._settled, later)
        await _take(steps, pace)
        for search in {**self._kept, **found}:
            matches, earlier = found.get(search, []), self._kept.get(search, [])
            kept = [it for it in matches if it.span.start < settled]
            self._kept[search] = [
                *([it for it in earlier if it.span.end > released] or earlier[-1:]),
                *kept,
            ]
            if kept:
                later[search] = kept[-1].behind
            now[search] = (*self._kept[search], *(matches[len(kept) :] * takes_open))
        self._settled = settled
        self._reads_from = {it: place for it, place in later.items() if place > (settled, 0)}
        return _states(group, self._num_readings, now)


def _num_readings(text: str) -> int:
    """Return how many readings a text has: one, if the text is its own normal form."""
    is_normal = text.translate(NORMAL) == text and unicodedata.is_normalized("NFKC", text)
    return 1 if is_normal else len(READINGS)


def _in_each_reading(known: Mapping[_Search, Item]) -> dict[_Search, Item]:
    return {it._replace(reading=own): value for it, value in known.items() for own in READINGS}


async def _take(steps: Iterator[int], pace: Pace) -> None:
    """Take steps, each behind its size; those of a long search on the thread."""
    if any(it > MAX_STEPS_ON_LOOP for it in accumulate(steps)):
        await in_turns(steps, pace)


async def in_turns(steps: Iterator[object], pace: Pace) -> None:
    """Take steps on the thread, which others may use after each turn.

    Raises:
        DeadlineExceededError: not all steps are taken in time.
    """

    def take_turn(_: Check) -> bool:
        end = time.monotonic() + TURN_S
        return any(time.monotonic() >= end for _ in steps)

    while await pace.on_thread(take_turn):
        pass


def _steps(
    group: _Group,
    text: str,
    num_readings: int,
    found: _Found,
    begin: int = 0,
    later: Mapping[_Search, tuple[int, int]] = MappingProxyType({}),
) -> Iterator[int]:
    """Find the matches of each search that has some. Yield the size of each step before it.

    A search begins where `later` says: at a place and the characters inside that a match before has
    read. All others have the same `begin`, and most of them nothing to find.
    """
    if not group.patterns:
        return
    readings, apart = cache(partial(_readings, text, num_readings)), dict[_Reading, list[Pattern]]()
    known = dict[tuple[Pattern, _Reading, int], list[_Match]]()
    yield (len(text) - begin) ** 2
    due = [(it, readings(place)[it.reading], inside) for it, (place, inside) in later.items()]
    for number, reading in enumerate(readings(begin)):
        if reading not in apart:
            apart[reading] = []
            yield from _find_candidates(group, reading, apart[reading])
        own = (_Search(it, number) for it in apart[reading])
        due += [(it, reading, 0) for it in own if it not in later]
    for search, reading, inside in due:
        here = search.pattern, reading, inside
        if here not in known:
            known[here] = matches = list[_Match]()
            num_chars = max(len(reading.text), LEAST_CHARS)
            yield num_chars**2 * compiled(search.pattern.pattern).size
            for match in _matches(*here):
                matches.append(match)
                yield 0
        if known[here]:
            found[search] = known[here]


def _find_candidates(group: _Group, reading: "_Reading", found: list[Pattern]) -> Iterator[int]:
    """Find the patterns of a group that may match, and yield the size of each step before it."""
    if len(group.patterns) <= MAX_APART:
        found += group.patterns
        return
    if group.as_one is not None:
        regex = compiled(group.as_one)
        yield (LEAST_CHARS**2 + STEPS_OF_A_CHAR * len(reading.text)) * regex.size
        if next(regex.find(reading.text, reading.first), None) is None:
            return
    for half in group.halves:
        yield from _find_candidates(half, reading, found)


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

    @property
    def first(self) -> int:
        return bisect_left(self.starts, self.begin)


def _matches(pattern: Pattern, reading: _Reading, inside: int) -> Iterator[_Match]:
    skipped, starts = reading.skipped, reading.starts
    for start, end in compiled(pattern.pattern).find(reading.text, reading.first + inside):
        first, last = starts[start] + skipped, reading.lasts[end - 1] + skipped
        behind = last + 1, 0
        if end < len(starts) and starts[end] == starts[end - 1]:
            behind = starts[end] + skipped, end - bisect_left(starts, starts[end])
        yield _Match(FoundSpan(start=first, end=last + 1, label=pattern.label), behind)


def _readings(text: str, num_readings: int, begin: int) -> Sequence[_Reading]:
    """Return what patterns read of a text from a place on, in the order of `READINGS`."""
    # One character before the begin says whether a word or a line begins there. It shows something,
    # in the normal form too: a text settles and a match ends behind such a character.
    skipped = max(0, begin - 1)
    part = HALF.sub(LOST, text[skipped:])
    places = range(len(part))
    written = _Reading(part, places, places, begin - skipped, skipped)
    if num_readings == 1:
        return (written,)
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
    forms, starts, lasts, behind = list[str](), list[int](), list[int](), 0

    def keep(begin: int, end: int) -> None:
        forms.append(text[begin:end])
        starts.extend(normal.starts[begin:end])
        lasts.extend(normal.lasts[begin:end])

    for run in NO_ASCII.finditer(text):
        keep(behind, run.start())
        behind = run.end()
        alone = (it for it in range(run.start() + 1, behind) if stands_alone(text[it]))
        for begin, end in pairwise((run.start(), *alone, behind)):
            cluster = text[begin:end]
            form = cluster if end - begin > MAX_CLUSTER else unicodedata.normalize("NFKC", cluster)
            if form == cluster:
                keep(begin, end)
            else:
                forms.append(form)
                starts += [normal.starts[begin]] * len(form)
                lasts += [normal.lasts[end - 1]] * len(form)
    keep(behind, len(text))
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


def _states(group: _Group, num_readings: int, found: Mapping[_Search, Sequence[_Match]]) -> Matches:
    def spans(pattern: Pattern) -> Iterator[Sequence[FoundSpan]]:
        for reading in range(num_readings):
            yield [it.span for it in found.get(_Search(pattern, reading), ())]

    return {**group.no_match, **{it.pattern: state_of(*spans(it.pattern)) for it in found}}


def state_of(*readings: Sequence[FoundSpan]) -> ConditionState:
    """Return what a pattern says that matches at places of several readings."""
    if not any(readings):
        return NO_MATCH
    found = tuple(readings[0])
    if any(it != readings[0] for it in readings):
        each = {*chain.from_iterable(readings)}
        found = tuple(sorted(each, key=lambda it: (it.start, it.end)))
    return ConditionState(holds=True, score=1.0, spans=found)
