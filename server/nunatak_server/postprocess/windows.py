"""Windows: the logits of one stretch of a text, token by token."""

from collections.abc import Sequence
from dataclasses import dataclass

from nunatak_model import Alignment, Encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Where the tokens of a window lie in its text, and the logits of each."""

    alignment: Alignment
    logits: tuple[Sequence[float], ...]


def window_of(encoding: Encoding, logits: Sequence[float]) -> Window:
    """Cut the logits of one row, which come token after token, into those of each token."""
    alignment = encoding.alignment
    assert alignment is not None, "heads that read tokens are given aligned encodings"  # noqa: S101
    width = len(logits) // encoding.num_tokens
    return Window(
        alignment=alignment,
        logits=tuple(logits[begin : begin + width] for begin in range(0, len(logits), width)),
    )
