"""The distinct inputs of a data set, in one order that depends on nothing but themselves."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain

import numpy as np

from nunatak_model import Encoding

CHUNK_TOKENS = 4096
"""Tokens of one pass through the trunk: enough to keep a processor busy, few enough to hold."""


@dataclass(frozen=True, kw_only=True)
class InputSet:
    """Distinct inputs, from the shortest to the longest, among equal lengths by their tokens.

    The order, and with it the chunks that run together, is the same whoever asks and in whatever
    order the examples lie. So the states of a set are the same bits whenever they are computed:
    a row's sums may differ in the last bit with the rows beside it.
    """

    encodings: tuple[Encoding, ...]

    @classmethod
    def of(cls, encodings: Iterable[Encoding]) -> "InputSet":
        """Return the distinct ones of some encodings, in order."""
        return cls(encodings=tuple(sorted(dict.fromkeys(encodings), key=_order)))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """First packed token of each input, and the number of all tokens at the end."""
        return tuple(accumulate((it.num_tokens for it in self.encodings), initial=0))

    @property
    def num_tokens(self) -> int:
        """Tokens of all inputs."""
        return self.offsets[-1]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the tokens of all inputs."""
        content = hashlib.sha256()
        for numbers in (
            [it.num_tokens for it in self.encodings],
            chain.from_iterable(it.token_ids for it in self.encodings),
            chain.from_iterable(it.type_ids for it in self.encodings),
        ):
            content.update(np.fromiter(numbers, dtype="<i8").tobytes())
        return content.hexdigest()

    def chunks(self) -> Iterator[tuple[Encoding, ...]]:
        """Yield the inputs that go through the trunk together, in order."""
        begin, tokens = 0, 0
        for index, encoding in enumerate(self.encodings):
            if tokens and tokens + encoding.num_tokens > CHUNK_TOKENS:
                yield self.encodings[begin:index]
                begin, tokens = index, 0
            tokens += encoding.num_tokens
        if begin < len(self.encodings):
            yield self.encodings[begin:]


def _order(encoding: Encoding) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return encoding.num_tokens, encoding.token_ids, encoding.type_ids
