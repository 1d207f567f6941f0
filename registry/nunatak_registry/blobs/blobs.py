"""Content-addressed blobs: bytes stored under their own SHA-256, and checked against it."""

import hashlib
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Self

from nunatak_registry.blobs.files import Files, open_files
from nunatak_registry.errors import CorruptBlobError

_PIECE_BYTES = 1024**2
MAX_BLOB_BYTES = 4 * 1024**3
"""A full float32 copy of the largest supported encoder, XLM-R large, has 2.2 GB."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FOLDER = "sha256"
_QUARANTINE = "quarantine"


def digest_of(data: bytes) -> str:
    """Return the SHA-256 of `data` in lower-case hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def fits(data: bytes, digest: str, *, pause: Callable[[], None] = lambda: None) -> bool:
    """Return whether `digest` is the SHA-256 of `data`; `pause` is called after each megabyte."""
    found, view = hashlib.sha256(), memoryview(data)
    for start in range(0, len(view), _PIECE_BYTES):
        found.update(view[start : start + _PIECE_BYTES])
        pause()
    return found.hexdigest() == digest


class FileKind(StrEnum):
    """The kind of file at a key below the root."""

    BLOB = "blob"
    TEMPORARY = "temporary"
    STRANGER = "stranger"


_KEYS = {
    FileKind.BLOB: re.compile(r"sha256/([0-9a-f]{2})/(\1[0-9a-f]{62})"),
    FileKind.TEMPORARY: re.compile(r"sha256/[0-9a-f]{2}/\.[0-9a-f]{32}\.tmp"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file or folder under the root. The bytes of a blob are not checked."""

    key: str
    kind: FileKind

    @classmethod
    def at(cls, key: str) -> Self:
        kinds = (kind for kind, pattern in _KEYS.items() if pattern.fullmatch(key))
        return cls(key=key, kind=next(kinds, FileKind.STRANGER))

    @property
    def is_among_blobs(self) -> bool:
        return self.key.partition("/")[0] == _FOLDER

    @property
    def digest(self) -> str:
        """The last part of the key, which is the digest of a blob."""
        return self.key.rpartition("/")[2]


class BlobStore:
    """Immutable blobs named `sha256/ab/ab...` under one root. Threads may share the store.

    Every method raises `StoreUnavailableError` if the place cannot be reached or written.
    """

    def __init__(self, files: Files) -> None:
        self._files = files

    @classmethod
    def open(cls, root: str) -> Self:
        return cls(open_files(root))

    def put(self, data: bytes) -> str:
        """Store `data`, durable on return, and return its digest.

        Existing bytes are written again: this repairs a damaged copy, and makes a retry after a
        failed fsync effective. Readers are not disturbed.
        """
        digest = digest_of(data)
        self._files.write(blob_key(digest), data)
        return digest

    def get(self, digest: str, size: int, *, pause: Callable[[], None] = lambda: None) -> bytes:
        """Return bytes of this size and digest, or raise `CorruptBlobError`."""
        if size > MAX_BLOB_BYTES:
            raise CorruptBlobError(digest, f"may have {MAX_BLOB_BYTES} bytes at most, not {size}")
        data = self._files.read(blob_key(digest), size + 1)
        if data is None:
            raise CorruptBlobError(digest, "is missing or no plain file")
        if len(data) != size:
            found = "more" if len(data) > size else str(len(data))
            raise CorruptBlobError(digest, f"must have {size} bytes, found {found}")
        if not fits(data, digest, pause=pause):
            raise CorruptBlobError(digest, "holds bytes that do not match its digest")
        return data

    def exists(self, digest: str) -> bool:
        """Return whether there is a file of that name; its bytes are not checked."""
        return self._files.exists(blob_key(digest))

    def has_folder(self) -> bool:
        return self._files.has_folder(_FOLDER)

    def check_writable(self, room: int = 0) -> None:
        self._files.check_writable(room)

    def files(self) -> Iterator[StoredFile]:
        for key in self._files.list_keys():
            if not key.startswith(f"{_QUARANTINE}/"):
                yield StoredFile.at(key)

    def is_sound(self, digest: str) -> bool:
        data = self._files.read(blob_key(digest), MAX_BLOB_BYTES + 1)
        return data is not None and digest_of(data) == digest

    def modified(self, file: StoredFile) -> datetime | None:
        return self._files.modified(file.key)

    def remove(self, file: StoredFile) -> None:
        self._files.delete(file.key)

    def quarantine(self, key: str) -> str | None:
        """Move the file at `key` to the quarantine; return its new key, or None without a file."""
        target = f"{_QUARANTINE}/{uuid.uuid4().hex}/{key.rpartition('/')[2]}"
        return target if self._files.move(key, target) else None


def blob_key(digest: str) -> str:
    """Return the key of a digest's blob, relative to the root."""
    if _DIGEST.fullmatch(digest) is None:
        raise CorruptBlobError(digest[:64], "has no SHA-256 digest for a name")
    return f"{_FOLDER}/{digest[:2]}/{digest}"
