"""Joined texts: what a language model reads as one, although a call has it in several texts.

An attack may be cut in the middle of a sentence, and each piece may look harmless. So the borders
between texts are judged too. A joined text has the ends of long texts, and short texts whole, with
line breaks between them. Some models put texts together without a space, so if a word may go on in
the next text, there is a second joined text without these line breaks.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from nunatak_server.outputs.conditions import FoundSpan

END: Final = 256
"""Characters at each end of a long text that are judged with the texts next to it."""
ENDS_IN_A_TEXT: Final = 5
"""A joined text has room for at least this number of ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a text of a call, and its place in a joined text."""

    text: str
    begin: int
    size: int
    place: int = 0
    is_end: bool = True
    """Whether the part ends its text."""

    @property
    def characters(self) -> str:
        return self.text[self.begin : self.begin + self.size]

    def of_text(self, span: FoundSpan) -> FoundSpan | None:
        """Return the part of a span of the joined text that is in this piece, by the text."""
        start, end = max(span.start, self.place), min(span.end, self.place + self.size)
        shift = self.begin - self.place
        if start >= end:
            return None
        return FoundSpan(start=start + shift, end=end + shift, label=span.label)


Joined = Mapping[str, Sequence[Piece]]
"""Joined texts with their pieces."""


def joined_texts(texts: Sequence[str], *, max_chars: int) -> Joined:
    """Return what a model may read as one of texts that follow each other.

    No joined text is longer than `max_chars`. If there are more characters, each joined text begins
    with the last piece of the joined text before.
    """
    if len(texts) < 2:
        return {}
    pieces = list(_pieces(texts, size=min(END, max_chars // ENDS_IN_A_TEXT)))
    found = dict[str, Sequence[Piece]]()
    for glues in (False, True)[: 1 + any(_is_in_a_word(*it) for it in pairwise(pieces))]:
        for part in _parts(pieces, max_chars=max_chars):
            text, placed = "", list[Piece]()
            for piece in part:
                if placed and not (glues and _is_in_a_word(placed[-1], piece)):
                    text += "\n"
                placed.append(_at(piece, len(text)))
                text += piece.characters
            found.setdefault(text, placed)
    return found


def _pieces(texts: Iterable[str], *, size: int) -> Iterator[Piece]:
    for text in texts:
        if len(text) <= 2 * size:
            yield Piece(text=text, begin=0, size=len(text))
        else:
            yield Piece(text=text, begin=0, size=size, is_end=False)
            yield Piece(text=text, begin=len(text) - size, size=size)


def _parts(pieces: Sequence[Piece], *, max_chars: int) -> Iterator[Sequence[Piece]]:
    part, used = list[Piece](), 0
    for piece in pieces:
        if used + piece.size >= max_chars:
            yield part
            part = part[-1:]
            used = part[0].size
        part.append(piece)
        used += 1 + piece.size
    yield part


def _at(piece: Piece, place: int) -> Piece:
    return Piece(
        text=piece.text, begin=piece.begin, size=piece.size, place=place, is_end=piece.is_end
    )


def _is_in_a_word(one: Piece, other: Piece) -> bool:
    """Return whether a word may go on from the end of a text to the begin of the next."""
    return one.is_end and one.characters[-1].isalnum() and other.characters[0].isalnum()
