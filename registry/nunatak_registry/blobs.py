"""Content-addressed blobs: bytes stored under, and checked against, their own SHA-256."""

import hashlib
import re
from collections.abc import Iterator
from typing import Self

from nunatak_registry.errors import CorruptBlobError
from nunatak_registry.files import Files, open_files

_KEY = re.compile(r"sha256/([0-9a-f]{2})/(\1[0-9a-f]{62})")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def digest_of(data: bytes) -> str:
    """Return the SHA-256 of `data` in lower-case hexadecimal."""
    return hashlib.sha256(data).hexdigest()


class BlobStore:
    """Immutable blobs named `sha256/ab/ab...` under one root. Safe to share between threads."""

    def __init__(self, files: Files) -> None:
        self._files = files

    @classmethod
    def open(cls, root: str) -> Self:
        """Return the store under `root`, a local path or an fsspec URL. Creates nothing.

        Raises:
            StoreUnavailableError: the protocol is unknown, or its package is not installed.
        """
        return cls(open_files(root))

    def put(self, data: bytes) -> str:
        """Store `data` and return its digest; durable on return, whole or not at all.

        Bytes that are there already are written again. That heals a damaged copy, makes a retry
        after a failed fsync honest, and disturbs no reader.

        Raises:
            StoreUnavailableError: the place cannot be reached, or is full.
        """
        digest = digest_of(data)
        self._files.write(_key(digest), data)
        return digest

    def get(self, digest: str, size: int) -> bytes:
        """Return the blob after checking the returned bytes themselves.

        Raises:
            CorruptBlobError: missing, not a plain file, of another size, or of another digest.
            StoreUnavailableError: the place cannot be reached.
        """
        data = self._files.read(_key(digest), size + 1)
        if data is None:
            raise CorruptBlobError(digest, "is missing or no plain file")
        if len(data) != size:
            found = "more" if len(data) > size else str(len(data))
            raise CorruptBlobError(digest, f"must have {size} bytes, found {found}")
        if digest_of(data) != digest:
            raise CorruptBlobError(digest, "holds other bytes than its digest says")
        return data

    def exists(self, digest: str) -> bool:
        """Tell whether a file of that name is there; its bytes are not looked at.

        Raises:
            StoreUnavailableError: the place cannot be reached.
        """
        return self._files.exists(_key(digest))

    def delete(self, digest: str) -> None:
        """Remove the blob, if it is there.

        Raises:
            StoreUnavailableError: the place cannot be reached or written.
        """
        self._files.delete(_key(digest))

    def digests(self) -> Iterator[str]:
        """Yield the digest of every blob there is, in no order; other files are passed over.

        Raises:
            StoreUnavailableError: the place cannot be reached.
        """
        for key in self._files.list_keys():
            found = _KEY.fullmatch(key)
            if found is not None:
                yield found[2]


def _key(digest: str) -> str:
    if _DIGEST.fullmatch(digest) is None:
        raise CorruptBlobError(digest[:64], "has no SHA-256 digest for a name")
    return f"sha256/{digest[:2]}/{digest}"
