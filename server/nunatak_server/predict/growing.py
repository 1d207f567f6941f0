"""A growing text: which of its windows are closed, and what versions have answered about them.

The borders of windows depend only on the tokens before them. So a window that is full, in a text
that goes on, is a window of the whole text. Each step tokenizes the open window and one word before
it, since a tokenizer may read the begin of a text in its own way. The end tokenizes the whole text.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from nunatak_model import Encoding
from nunatak_server.predict.known_rows import KnownRows
from nunatak_server.tokenization import Encodings, Reading

MOST_CHARS = 8
"""Characters of a token at most, in the guess of how many a window still needs."""
Place = tuple[int, int]
"""Begin and end of a token, in characters of the whole text."""


@dataclass(slots=True, kw_only=True)
class _Windows:
    start: tuple[int, int] = (0, 0)
    """A place at white space, and the number of tokens from there to the open window."""
    reads_from: int = 0
    """The begin of the word before this place."""
    closed: list[Encoding] = field(default_factory=list[Encoding])
    """The closed windows with text that is not released yet."""
    opens_at: int = 0
    """The first character of the open window."""
    num_missing_chars: int = 0
    """Characters until the open window is closed, about."""


class Growing:
    """The text of a stream so far; only the event loop thread may use it."""

    def __init__(self) -> None:
        self.text = ""
        """The text to read; its last word is whole."""
        self.is_whole = False
        """Whether the text ends here. Then it is read as any other text."""
        self.takes_open = False
        """Whether open windows are judged too, as they stand."""
        self._windows = dict[Reading, _Windows]()
        self._read = dict[Reading, _Windows]()
        """The windows of the readings of this step."""
        self.known_rows = KnownRows()
        """About the windows that are closed."""
        self._counted = set[tuple[str, str]]()

    @property
    def covered(self) -> int:
        """The first character of the open windows; all windows of the text before are closed."""
        return min((it.opens_at for it in self._read.values()), default=len(self.text))

    @property
    def num_chars_again(self) -> int:
        """Characters before the open windows that the next step tokenizes."""
        begin = min((it.reads_from for it in self._read.values()), default=0)
        return max(0, self.covered - begin)

    @property
    def num_missing_chars(self) -> int:
        """Characters until a window is closed, about."""
        return min((it.num_missing_chars for it in self._read.values()), default=0)

    @property
    def has_closed(self) -> bool:
        return any(it.closed for it in self._windows.values())

    def counts(self, reference: str, outcome: str) -> bool:
        """Whether this outcome of a reference is new; later looks say it again."""
        is_new = (reference, outcome) not in self._counted
        self._counted.add((reference, outcome))
        return is_new

    def grow(self, text: str, *, takes_open: bool) -> None:
        self.text, self.takes_open = text, takes_open
        self._read.clear()

    def release(self, end: int) -> None:
        """Forget the windows of released text. What versions have answered stays known.

        With an open window nothing is forgotten: the next look records what these windows say.
        """
        if self.takes_open:
            return
        for it in self._windows.values():
            it.closed = [window for window in it.closed if _places(window)[-1][1] > end]

    def plan(self, readings: Iterable[Reading]) -> tuple[str, Mapping[Reading, Reading], int]:
        """Return the text to tokenize, how to read it for each reading, and where it begins."""
        aligned = {it: replace(it, is_aligned=True) for it in readings}
        own = {it: self._windows.setdefault(it, _Windows()) for it in aligned.values()}
        self._read |= own
        begin = min((it.reads_from for it in own.values()), default=0)
        planned = dict[Reading, Reading]()
        for reading, key in aligned.items():
            place, num_tokens = own[key].start
            planned[reading] = replace(key, start=(place - begin, num_tokens))
        return self.text[begin:], planned, begin

    def take(self, reading: Reading, windows: Encodings, *, begin: int) -> Encodings:
        own = self._windows[replace(reading, start=None)]
        *closed, last = (_moved(it, begin) for it in windows)
        if _places(last):
            own.opens_at = min(start for start, _ in _places(last))
        # A window may lack room for text. Then the whole text is read again each time.
        num_missing = max(1, reading.max_length - last.num_tokens + 1)
        num_chars = len(self.text) - own.opens_at
        # After white space, or a long word that is one token, the next tokens are far shorter.
        # An eighth more than the open window has is little, so the window is read a few times.
        most = max(num_missing * MOST_CHARS, num_chars // 8)
        own.num_missing_chars = min(num_missing * num_chars // last.num_tokens, most)
        self._move_start(own, closed, last)
        own.closed += closed
        return (*own.closed, last) if self.takes_open else tuple(own.closed)

    def _move_start(self, own: _Windows, closed: Sequence[Encoding], last: Encoding) -> None:
        before = list[Place]()
        for window, after in pairwise((*closed, last)):
            places = _places(window)
            assert after.alignment is not None  # noqa: S101 - all readings here are aligned
            before += places[: len(places) - after.alignment.num_repeated]
        place, num_tokens = own.start
        space = space_before(self.text, own.opens_at)
        # Of a token of spaces, only the begin has its place, and tokens may share a character.
        if before and before[0][0] < space:
            own.start = space, sum(begin >= space for begin, _ in before)
            own.reads_from = space_before(self.text, max(0, space - 1))
        else:
            own.start = place, num_tokens + len(before)

    def stays(self, window: Encoding, windows: Sequence[Encoding]) -> bool:
        """Whether a window of the windows of a reading is closed. An open window grows."""
        return not self.takes_open or window != windows[-1]


def _moved(window: Encoding, by: int) -> Encoding:
    if not by or window.alignment is None:
        return window
    offsets = tuple((start + by, end + by) for start, end in window.alignment.offsets)
    return replace(window, alignment=replace(window.alignment, offsets=offsets))


def _places(window: Encoding) -> list[Place]:
    alignment = window.alignment
    assert alignment is not None  # noqa: S101 - all readings here are aligned
    tokens = zip(alignment.text_ids, alignment.offsets, strict=True)
    return [place for text_id, place in tokens if text_id is not None]


def space_before(text: str, place: int) -> int:
    """Return the begin of the last white space at or before a place; 0 without any."""
    while place and not text[place : place + 1].isspace():
        place -= 1
    while place and text[place - 1].isspace():
        place -= 1
    return place
