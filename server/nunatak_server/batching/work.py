"""Work: what rows cost, in tokens through all layers; rows of one text pay for its trunk once."""

from typing import Protocol


class Extent(Protocol):
    """How long a row is, and how far up it reads its trunk row."""

    @property
    def trunk_tokens(self) -> int:
        """Tokens of its trunk row, paid once per batch and key."""
        ...

    @property
    def branch_tokens(self) -> int:
        """Tokens of its own branch row."""
        ...

    @property
    def trunk_share(self) -> float:
        """Part of the layers that its trunk row passes; its branch row passes the others."""
        ...


def work_added(row: Extent, *, paid_share: float = 0.0) -> float:
    """Return the work of a row, in tokens through all layers.

    That of its branch row, and that of its trunk row above `paid_share`, the part of the layers
    that others pay for.
    """
    above = row.trunk_tokens * max(0.0, row.trunk_share - paid_share)
    return above + row.branch_tokens * (1.0 - row.trunk_share)
