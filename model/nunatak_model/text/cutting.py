"""Cutting: the parts of a text or pair that is longer than its encoder can read at once.

A long text is tokenized once, whole. Its special tokens show the bounds of its texts, and every
shorter encoding has the same special tokens around a slice of each text. All lengths are in tokens.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import tokenizers

from nunatak_model.text.encoding import Encoding, Part

Slice = tuple[int, int]
"""Begin and end of a part of a text, counted in tokens of that text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongText:
    """A text or pair with its special tokens, and the position of its texts among all tokens."""

    token_ids: tuple[int, ...]
    type_ids: tuple[int, ...]
    begins: tuple[int, ...]
    sizes: tuple[int, ...]
    num_unread: int
    """Number of characters that no token stands for."""

    @property
    def num_special(self) -> int:
        return len(self.token_ids) - sum(self.sizes)

    def cut(self, max_length: int) -> Encoding:
        """The beginning. In a pair the longer text is cut first, as in `tokenizers`."""
        room = max(0, max_length - self.num_special)
        sizes = (min(room, self.sizes[0]),) if len(self.sizes) == 1 else self._longest_first(room)
        left_out = sum(self.sizes) - sum(sizes)
        part = Part(num_left_out=left_out, num_unread=self.num_unread)
        return self._encoding([(0, size) for size in sizes], part)

    def windows(self, max_length: int, *, stride: int) -> Iterator[Encoding]:
        """Overlapping windows of the last text, each with the first text of a pair before it.

        Adjacent windows share `stride` tokens, but never more than half of a window. The first text
        is cut to the room that the second text leaves, or to half of a window.
        """
        *first, size = self.sizes
        room = max(0, max_length - self.num_special)
        kept = [min(length, max(room - room // 2, room - size)) for length in first]
        room -= sum(kept)
        if room < 1:
            yield self.cut(max_length)
            return
        stride = min(stride, room // 2)
        begins = range(0, max(1, size - stride), room - stride)
        whole = Part(num_left_out=sum(first) - sum(kept), num_unread=self.num_unread)
        parts = parts_of_windows(self.num_special + sum(kept), stride, whole)
        for begin, part in zip(begins, parts, strict=False):
            held = [*((0, length) for length in kept), (begin, min(begin + room, size))]
            yield self._encoding(held, part)

    def _longest_first(self, room: int) -> tuple[int, int]:
        """The shorter text is kept whole if it has at most half."""
        first, second = self.sizes
        if first + second <= room:
            return first, second
        shorter = min(first, second)
        if shorter > room // 2:
            shorter, longer = room // 2, room - room // 2
        else:
            longer = room - shorter
        return (longer, shorter) if first > second else (shorter, longer)

    def _encoding(self, held: list[Slice], part: Part) -> Encoding:
        return Encoding(
            token_ids=self._around(self.token_ids, held),
            type_ids=self._around(self.type_ids, held),
            part=part,
        )

    def _around(self, values: tuple[int, ...], held: list[Slice]) -> tuple[int, ...]:
        found, end = tuple[int, ...](), 0
        for (start, stop), begin, size in zip(held, self.begins, self.sizes, strict=True):
            found += values[end:begin] + values[begin + start : begin + stop]
            end = begin + size
        return found + values[end:]


def parts_of_windows(num_around: int, stride: int, whole: Part) -> Iterator[Part]:
    """Without end. Of each window, `num_around` tokens are not text."""
    yield whole
    for index in itertools.count(1):
        yield Part(index=index, num_repeated=num_around + stride)


def long_text(whole: Encoding, found: tokenizers.Encoding) -> LongText:
    text_ids = found.sequence_ids
    num_texts = 2 if 1 in text_ids else 1
    sizes = tuple(text_ids.count(text) for text in range(num_texts))
    return LongText(
        token_ids=whole.token_ids,
        type_ids=whole.type_ids,
        begins=tuple(text_ids.index(text) if size else 0 for text, size in enumerate(sizes)),
        sizes=sizes,
        num_unread=whole.part.num_unread,
    )
