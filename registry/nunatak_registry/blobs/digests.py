"""Digests: what a blob is named by, and what tells faster that its bytes are still the same."""

import hashlib
from collections.abc import Callable
from typing import Protocol

from blake3 import blake3

MAX_KNOWN = 65_536
"""Some 300 bytes each."""

_PIECE_BYTES = 1024**2


def digest_of(data: bytes) -> str:
    """Return the SHA-256 of `data` in lower-case hexadecimal."""
    return hashlib.sha256(data).hexdigest()


class KnownDigests:
    """Checks bytes against their SHA-256, and those that passed before by their BLAKE3.

    Both are cryptographic, and BLAKE3 takes a third of the time. Safe to share between threads.
    """

    def __init__(self, *, max_known: int = MAX_KNOWN) -> None:
        self._max_known = max_known
        self._known: dict[str, str] = {}

    def fits(self, data: bytes, digest: str, *, pause: Callable[[], None] = lambda: None) -> bool:
        """Tell whether `digest` is the SHA-256 of `data`.

        `pause` is called after each megabyte that is checked.
        """
        known = self._known.get(digest)
        fast = blake3()
        if known is not None:
            _feed(data, fast, pause=pause)
            return fast.hexdigest() == known
        slow = hashlib.sha256()
        _feed(data, slow, fast, pause=pause)
        if slow.hexdigest() != digest:
            return False
        if len(self._known) >= self._max_known:
            self._known.clear()
        self._known[digest] = fast.hexdigest()
        return True


class _Hash(Protocol):
    def update(self, data: memoryview, /) -> object: ...


def _feed(data: bytes, *hashes: _Hash, pause: Callable[[], None]) -> None:
    view = memoryview(data)
    for start in range(0, len(view), _PIECE_BYTES):
        piece = view[start : start + _PIECE_BYTES]
        for it in hashes:
            it.update(piece)
        pause()
