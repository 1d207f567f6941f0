"""Examples as the loop reads them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from torch import Tensor

from nunatak_model import Encoding

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedSet:
    """Encodings with what each should give; a long text has several."""

    encodings: tuple[Encoding, ...]
    targets: tuple[Tensor, ...]
    """Of each encoding, on the CPU; what they mean is the business of the loss."""
    sizes: tuple[int, ...]
    """How many encodings each example has."""

    @property
    def num_long(self) -> int:
        """Examples of more tokens than one encoding holds."""
        return sum(
            any(it.part.index or it.part.num_left_out for it in found)
            for found in self.by_example(self.encodings)
        )

    def by_example(self, rows: Sequence[T]) -> Iterator[tuple[T, ...]]:
        """Put what belongs to each encoding together by example."""
        remaining = iter(rows)
        for size in self.sizes:
            yield tuple(islice(remaining, size))
