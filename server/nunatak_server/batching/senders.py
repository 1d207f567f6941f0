"""Who sends rows and how they rank: what a turn in a batch is given to."""

from enum import StrEnum
from typing import Final

ANONYMOUS: Final = "anonymous"
"""The caller of requests that name none."""


class Priority(StrEnum):
    """How a request ranks among those of its own caller; it takes nothing from other callers."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @property
    def rank(self) -> int:
        """0 goes first."""
        return _RANKS[self]


_RANKS: Final = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}
