"""Joined texts: what a language model may read as one of texts that follow each other.

An attack may be cut in the middle of a sentence, and each piece may look harmless. So the borders
between texts are judged too. A joined text has the ends of long texts, and short texts whole, with
line breaks between them. Some models put texts together without a space, so if a word may go on in
the next text, there is a second joined text without these line breaks.

A pattern counts each character, and tasks would need more time for more texts. So patterns alone
also read the ends as they are written, with nothing and with a line break between. What matches
there across a border is found in each of its texts.
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import Final, NamedTuple

from nunatak_contract.policies import Pattern
from nunatak_server.errors import invalid_request
from nunatak_server.outputs.conditions import FoundSpan, whole_words
from nunatak_server.scheduler.turns import Pace
from nunatak_server.verdicts.patterns import (
    Matches,
    in_turns,
    matches_in_all,
    stands_alone,
    state_of,
)
from nunatak_server.verdicts.rules import merged_spans

END: Final = 256
"""Characters of runs at each end of a long text that are judged with the texts next to it; of what
patterns read there, characters that show something."""
GAP: Final = r"\W_\u115f\u1160\u3164\uffa0"
"""The characters between words, with four letters of Hangul that show nothing."""
RUN: Final = re.compile(f"[^{GAP}]+(?:[{GAP}]{{1,3}}[^{GAP}]+){{0,255}}")
"""Words with little between them. Long white space and rows of symbols are left out of joined
texts, because a task may read nothing there. A text read backwards has the same runs."""
SENTENCE_END: Final = re.compile(r"\W*?[.!?\u2026\u3002\uff01\uff1f\u061f\u0964]")
"""The end of a sentence, read backwards from the end of a text."""
ENDS_IN_A_TEXT: Final = 5
"""A joined text has room for at least this number of ends."""
MAX_PIECES: Final = 8_000
"""Most pieces of a call. Texts may follow each other in a list, and as texts of an author."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    text: str
    begin: int
    size: int
    place: int = 0

    @property
    def end(self) -> int:
        return self.begin + self.size

    @property
    def characters(self) -> str:
        return self.text[self.begin : self.end]

    def of_text(self, span: FoundSpan) -> FoundSpan | None:
        """Return the part of a span of the joined text that is in this piece, by the text."""
        start, end = max(span.start, self.place), min(span.end, self.place + self.size)
        shift = self.begin - self.place
        if start >= end:
            return None
        return FoundSpan(start=start + shift, end=end + shift, label=span.label)


def parts_in(
    spans: Sequence[FoundSpan], pieces: Iterable[Piece]
) -> Iterator[tuple[int, Piece, FoundSpan]]:
    """Yield each part of a span in a piece: the index of the span, the piece, and the part.

    The spans of the joined text must be in order and apart.
    """
    ends = [it.end for it in spans]
    for piece in pieces:
        for index in range(bisect_right(ends, piece.place), len(spans)):
            if (own := piece.of_text(spans[index])) is None:
                break
            yield index, piece, own


Joined = Mapping[str, Collection[Piece]]
"""Joined texts with their pieces, in all sequences that give the joined text."""
Borders = dict[tuple[str, str], dict[Piece, None]]
"""The pieces of borders, by the text in which a border begins, and the border itself. Patterns may
read two equal borders from different places."""
Ends = Callable[[str], Sequence[Piece]]
Glue = Callable[[Piece, Piece], bool]
"""Whether no line break stands between two pieces."""
GLUES: Final[Sequence[Glue]] = (lambda *_: True, lambda *_: False)


def joined_texts(sequences: Iterable[Sequence[str]], *, max_chars: int, most: int) -> Joined:
    """Return what a model may read as one of texts that follow each other, for each sequence.

    No joined text is longer than `max_chars`. If there are more characters, each joined text begins
    with at least one end's characters of the joined text before. No sequence is joined once there
    are more than `most` texts, because a call with so many is refused.
    """
    size = min(END, max_chars // ENDS_IN_A_TEXT)
    # A text may follow many others, and to find its ends takes the most time.
    ends_of = cache(partial(_ends, size=size))
    found, left = dict[str, dict[Piece, None]](), MAX_PIECES
    for texts in sequences:
        if len(found) > most:
            break
        pieces = _pieces(texts, ends_of, most=left)
        left -= len(pieces)
        for text, placed in _joined(pieces, max_chars=max_chars, overlap=size):
            found.setdefault(text, {}).update(dict.fromkeys(placed))
    return found


def _joined(
    pieces: Sequence[Piece], *, max_chars: int, overlap: int
) -> Iterator[tuple[str, Sequence[Piece]]]:
    glues: Sequence[Glue] = (lambda *_: False, _is_in_a_word)
    for glue in glues[: 1 + any(_is_in_a_word(*it) for it in pairwise(pieces))]:
        for part in _parts(pieces, max_chars=max_chars, overlap=overlap):
            yield _put_together(part, glue)


def _put_together(pieces: Iterable[Piece], glue: Glue) -> tuple[str, Sequence[Piece]]:
    text, placed = "", list[Piece]()
    for piece in pieces:
        if placed and not glue(placed[-1], piece):
            text += "\n"
        placed.append(replace(piece, place=len(text)))
        text += piece.characters
    return text, placed


def _pieces(texts: Iterable[str], ends_of: Ends, *, most: int) -> Sequence[Piece]:
    """Return the pieces of texts; none if less than two texts have words."""
    pieces, num_texts = list[Piece](), 0
    for text in texts:
        ends = ends_of(text)
        pieces += ends
        num_texts += bool(ends)
        if len(pieces) > most:
            problem = "a guarded call has too many words with long white space or symbols between"
            raise invalid_request(problem)
    return pieces if num_texts > 1 else ()


def _ends(text: str, size: int) -> Sequence[Piece]:
    found = list(_runs(text, 2 * size))
    if sum(it.size for it in found) == 2 * size:
        back = (replace(it, text=text, begin=len(text) - it.end) for it in _runs(text[::-1], size))
        found = [*_runs(text, size), *reversed(list(back))]
    return found


def _runs(text: str, size: int) -> Iterator[Piece]:
    """Yield the runs of a text up to a number of characters, with a character around each."""
    end = 0
    for run in RUN.finditer(text):
        begin, end = max(end, run.start() - 1), min(len(text), run.end() + 1)
        piece = Piece(text=text, begin=begin, size=min(size, end - begin))
        yield piece
        if not (size := size - piece.size):
            return


def _parts(pieces: Sequence[Piece], *, max_chars: int, overlap: int) -> Iterator[Sequence[Piece]]:
    if not pieces:
        return
    begin = used = 0
    for end, piece in enumerate(pieces):
        if used + piece.size >= max_chars:
            yield pieces[begin:end]
            while used - pieces[begin].size > overlap:
                used -= 1 + pieces[begin].size
                begin += 1
        used += 1 + piece.size
    yield pieces[begin:]


def _is_in_a_word(one: Piece, other: Piece) -> bool:
    """Return whether a word may go on in the next text: letters, or an address such as `a@|b.org`.

    A full stop or colon before a new sentence ends the word.
    """
    if one.end < len(one.text) or other.begin:
        return False
    before, after = one.characters[-2:], other.characters[:2]
    if before[-1].isalnum():
        return after[0].isalnum() or _reaches(before[-1], after)
    return before[-1] != ":" and goes_on(before, after) and _reaches(before, after)


def _reaches(before: str, after: str) -> bool:
    (word,) = whole_words(before + after, [FoundSpan(start=0, end=1, label="")])
    return word.end > len(before)


def goes_on(before: str, after: str) -> bool:
    """Return whether a sentence of one text may go on in the other."""
    first = next((it for it in after if it.isalnum()), "")
    return first.islower() or SENTENCE_END.match(before[::-1]) is None


async def matches_in_call(
    patterns: Sequence[Pattern],
    texts: Sequence[str],
    joined: Joined,
    sequences: Iterable[Sequence[str]],
    pace: Pace,
    *,
    max_chars: int,
) -> Sequence[Matches]:
    """Return what patterns say about texts, also across the borders of those in sequences.

    Raises:
        DeadlineExceededError: the texts are not read in time.
    """
    borders, readings, found = Borders(), list[_Reading](), list[Matches]()
    await in_turns(border_texts(sequences, borders, max_chars=max_chars), pace)
    own = await matches_in_all(patterns, texts, pace)
    await in_turns(_find_readings(borders, dict(zip(texts, own, strict=True)), readings), pace)
    of_borders = await matches_in_all(
        patterns, [it.border for it in readings], pace, begins=[it.begins for it in readings]
    )
    read = zip(readings, of_borders, strict=True)
    await in_turns(_with_borders(texts, own, joined, read, found), pace)
    return found


class _Reading(NamedTuple):
    border: str
    pieces: Collection[Piece]
    begins: Mapping[Pattern, int]
    """From where a pattern reads, if not from the begin."""


def border_texts(
    sequences: Iterable[Sequence[str]], found: Borders, *, max_chars: int
) -> Iterator[None]:
    """Find the ends of texts that follow each other as they are written, for each sequence.

    A border stands with at least `END` characters that show something on both sides, if there are
    so many. A joined text with more than `max_chars` characters has few pieces.
    """
    ends_of = cache(_written_ends)
    for texts in sequences:
        pieces = chain.from_iterable(map(ends_of, texts))
        for group in _groups(pieces, max_chars=max_chars):
            for glue in GLUES if len(group) > 1 else ():
                border, placed = _put_together(group, glue)
                found.setdefault((group[0].text, border), {}).update(dict.fromkeys(placed))
                yield


def _find_readings(
    borders: Borders, own: Mapping[str, Matches], readings: list[_Reading]
) -> Iterator[None]:
    """Find from where patterns read borders.

    A border may begin within a match of a text, as it is written or in its normal form. In the
    whole text, the pattern goes on at the end of the match.
    """
    for (text, border), pieces in borders.items():
        cut, ends = next(iter(pieces)).begin, defaultdict[Pattern, list[int]](list)
        # Text of white space alone has no answers.
        for pattern, state in own.get(text, {}).items():
            for it in state.spans:
                if it.start < cut < it.end:
                    ends[pattern].append(it.end - cut)
        each = [{}, *({it: pick(places) for it, places in ends.items()} for pick in (min, max))]
        for number, begins in enumerate(each):
            if begins not in each[:number]:
                readings.append(_Reading(border, pieces, begins))
        yield


def _written_ends(text: str) -> Sequence[Piece]:
    first, last = _end_size(text), _end_size(text[::-1])
    if first + last >= len(text):
        return (Piece(text=text, begin=0, size=len(text)),)
    behind = Piece(text=text, begin=len(text) - last, size=last)
    return Piece(text=text, begin=0, size=first), behind


def _end_size(text: str) -> int:
    size = END
    while size < len(text) and _num_shown(text[:size]) < END:
        size *= 2
    return min(size, len(text))


def _num_shown(text: str) -> int:
    return sum(map(stands_alone, text))


def _groups(pieces: Iterable[Piece], *, max_chars: int) -> Iterator[Sequence[Piece]]:
    """Yield the pieces with no other characters between them, in parts that overlap."""
    group, used, most = list[Piece](), 0, max_chars
    for piece in pieces:
        if piece.begin or used + piece.size > most:
            yield group
            group = [] if piece.begin else _last_of(group)
            used = sum(it.size for it in group)
            # The overlap of hidden characters has no bound, and would be read with each piece.
            most = max(max_chars, 2 * used)
        group.append(piece)
        used += piece.size
    yield group


def _last_of(pieces: list[Piece]) -> list[Piece]:
    num_shown, begin = 0, len(pieces)
    while begin and num_shown < END:
        begin -= 1
        num_shown += _num_shown(pieces[begin].characters)
    return pieces[begin:]


def _with_borders(
    texts: Sequence[str],
    own: Sequence[Matches],
    joined: Joined,
    borders: Iterable[tuple[_Reading, Matches]],
    read: list[Matches],
) -> Iterator[None]:
    """Add what patterns say about each text, also across its borders."""
    across = defaultdict[str, dict[Pattern, dict[FoundSpan, None]]](dict)
    for reading, matches in borders:
        yield from _find_across(reading.pieces, matches, across)
    for text, known in zip(texts, own, strict=True):
        found = defaultdict[Pattern, dict[FoundSpan, None]](dict, across[text])
        for piece in joined.get(text, ()):
            back = replace(piece, begin=piece.place, place=piece.begin)
            for pattern, spans in across[piece.text].items():
                placed = map(back.of_text, spans)
                found[pattern] |= {it: None for it in placed if it is not None}
                yield
        more = {it: state_of(known[it].spans, [*spans]) for it, spans in found.items()}
        read.append({**known, **more})
        yield


def _find_across(
    pieces: Collection[Piece],
    matches: Matches,
    found: Mapping[str, dict[Pattern, dict[FoundSpan, None]]],
) -> Iterator[None]:
    """Add the part in each text of what matches in several texts, and what matches behind it there.

    The text alone may not have the matches behind it: a match that begins elsewhere covers others.
    """
    for pattern, state in matches.items():
        if not state.holds:
            continue
        parts = list(parts_in(merged_spans(state.spans), pieces))
        num_parts = Counter(index for index, _, _ in parts)
        for piece, own in groupby(parts, key=itemgetter(1)):
            follows = False
            for index, _, part in own:
                follows |= num_parts[index] > 1
                if follows:
                    found[piece.text].setdefault(pattern, {})[part] = None
            yield
