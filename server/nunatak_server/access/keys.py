"""Callers, API keys, and the authenticators that find the caller of a request.

A key is 256 random bits, so it cannot be guessed. The stored SHA-256 of a key needs no salt and no
slow hash, because people do not choose keys. The key cannot be derived from the stored digest.
"""

import asyncio
import hashlib
import hmac
import logging
import os
import secrets
import stat
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from nunatak_contract.errors import invalid_settings
from nunatak_contract.locks import locked_folder
from nunatak_contract.names import MAX_NAME_LENGTH, NAME_PATTERN, Digest
from nunatak_contract.record import problems_text
from nunatak_server.errors import KeyFileError
from nunatak_server.scheduler.turns import Limits, Quota
from nunatak_server.settings import ServerSettings

EVERY_TASK: Final = "*"
LAST: Final = "\x7f"
"""A character behind all characters of names."""


class Scope(StrEnum):
    """A permission of a caller. No scope implies another."""

    PREDICT = "predict"
    READ = "read"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskList:
    """The tasks that exist for a caller, by name or by `prefix*`."""

    patterns: tuple[str, ...] = (EVERY_TASK,)

    @property
    def has_all(self) -> bool:
        return EVERY_TASK in self.patterns

    def allows(self, task: str) -> bool:
        return any(_matches(pattern, task) for pattern in self.patterns)

    def among(self, names: Sequence[str]) -> frozenset[str]:
        """Return the tasks of the list among sorted names, without a look at each name."""
        found = set[str]()
        for pattern in self.patterns:
            prefix, star, _ = pattern.partition("*")
            after = bisect_right(names, prefix + LAST if star else prefix)
            found.update(names[bisect_left(names, prefix) : after])
        return frozenset(found)


ALL_TASKS: Final = TaskList()


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A caller; `weight` is the share of a busy server relative to other callers."""

    name: str
    scopes: frozenset[Scope]
    tasks: TaskList = ALL_TASKS
    weight: float = 1.0
    quotas: Limits = field(default_factory=dict[Quota, int])
    """Own limits of the caller; the settings have those of all callers."""


TOKEN_PREFIX: Final = "token:"  # noqa: S105 - a part of a name
"""The start of the names of callers with tokens, which no name of a key can have."""
ANYONE: Final = Caller(name="anonymous", scopes=frozenset(Scope))
"""The caller of every request on a server without keys."""


def _matches(pattern: str, task: str) -> bool:
    prefix, star, _ = pattern.partition("*")
    return task.startswith(prefix) if star else task == pattern


KEY_PREFIX: Final = "nunatak_"
"""The prefix of keys, by which scanners of repositories and logs recognise a leaked key."""
KEY_BYTES: Final = 32
MAX_KEYS: Final = 10_000

KeyName = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=MAX_NAME_LENGTH)]
TaskPattern = Annotated[
    str, StringConstraints(pattern=r"^(?:[a-z0-9][a-z0-9._-]*\*?|\*)$", max_length=65)
]


class KeyRecord(BaseModel, frozen=True, extra="forbid"):
    name: KeyName
    sha256: Digest
    scopes: Annotated[frozenset[Scope], Field(min_length=1)]
    tasks: Annotated[tuple[TaskPattern, ...], Field(min_length=1)] = (EVERY_TASK,)
    weight: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 1.0
    created_at: AwareDatetime
    expires_at: AwareDatetime | None = None
    quotas: dict[Quota, Annotated[int, Field(ge=1)]] | None = None

    @property
    def caller(self) -> Caller:
        return Caller(
            name=self.name,
            scopes=self.scopes,
            tasks=TaskList(patterns=self.tasks),
            weight=self.weight,
            quotas=self.quotas or {},
        )


class KeyFile(BaseModel, frozen=True, extra="forbid"):
    format: Literal[1] = 1
    keys: Annotated[tuple[KeyRecord, ...], Field(max_length=MAX_KEYS)] = ()

    @model_validator(mode="after")
    def _has_no_doubles(self) -> "KeyFile":
        if len({key.name for key in self.keys}) < len(self.keys):
            raise ValueError("two keys have one name")
        if len({key.sha256 for key in self.keys}) < len(self.keys):
            raise ValueError("two names have one key")
        return self


def new_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def digest_of(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


class Keyring:
    """Finds the caller of a key, by an HMAC of the digest under a secret of this object.

    Callers cannot compute this HMAC, so the time of a look-up reveals nothing about stored digests.
    """

    def __init__(self, keys: Sequence[KeyRecord]) -> None:
        self.weights = {it.name: it.weight for it in keys}
        self._secret = secrets.token_bytes(KEY_BYTES)
        self._callers = {self._blinded(bytes.fromhex(it.sha256)): (it, it.caller) for it in keys}

    def identify(self, presented: bytes, *, now: datetime) -> Caller | None:
        found = self._callers.get(self._blinded(hashlib.sha256(presented).digest()))
        if found is None:
            return None
        key, caller = found
        return None if key.expires_at is not None and now >= key.expires_at else caller

    def _blinded(self, digest: bytes) -> bytes:
        return hmac.digest(self._secret, digest, "sha256")


MODE: Final = 0o600
WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
MAX_BYTES: Final = 16 * 1024**2

Keys = tuple[KeyRecord, ...]


Stamp = tuple[int, int, int]
"""Inode, time and size: one state of a file. A write renames a new file, so the inode changes."""


def stamp_of(path: Path) -> Stamp:
    try:
        return _stamp(path.stat())
    except OSError as error:
        raise KeyFileError(path, error.strerror or "cannot be read") from None


def read_keys(path: Path) -> tuple[Keys, Stamp]:
    try:
        # To open a pipe would block until another process writes.
        with open(path, "rb", opener=lambda it, flags: os.open(it, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise KeyFileError(path, "is not a regular file")
            if status.st_mode & WRITABLE_BY_OTHERS:
                raise KeyFileError(path, f"may be written by others; run: chmod 600 {path}")
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise KeyFileError(path, error.strerror or "cannot be read") from None
    return _parse(path, data), _stamp(status)


def change_keys(path: Path, change: Callable[[Keys], Keys]) -> None:
    """Replace the keys of a file with the result of `change`; a missing file has no keys."""
    try:
        with locked_folder(path.parent) as folder:
            keys, _ = read_keys(path) if path.exists() else ((), None)
            _write(path, KeyFile(keys=change(keys)))
            os.fsync(folder)
    except OSError as error:
        raise KeyFileError(path, error.strerror or "cannot be written") from None


def _parse(path: Path, data: bytes) -> Keys:
    if len(data) > MAX_BYTES:
        raise KeyFileError(path, f"has more than {MAX_BYTES} bytes")
    try:
        return KeyFile.model_validate_json(data).keys
    except ValidationError as error:
        raise KeyFileError(path, problems_text(error, "the file")) from None


def _write(path: Path, content: KeyFile) -> None:
    """Replace a file and keep its owner and mode, because a server may run as another user."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)  # of a killed command, which holds no lock
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            _keep_owner(path, file.fileno())
            # Without what is not set, so that servers of other releases read the file.
            file.write(content.model_dump_json(indent=2, exclude_none=True).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _keep_owner(path: Path, descriptor: int) -> None:
    if not path.exists():
        return
    status = path.stat()
    try:
        os.fchown(descriptor, status.st_uid, status.st_gid)
    except PermissionError:
        owner = f"user {status.st_uid} and group {status.st_gid}"
        raise KeyFileError(
            path, f"belongs to {owner}; run the command as that user, or as root"
        ) from None
    os.fchmod(descriptor, stat.S_IMODE(status.st_mode))


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_ino, status.st_mtime_ns, status.st_size


def check_exposure(settings: ServerSettings) -> None:
    """Refuse to listen to other machines without keys, unless `insecure_open` is set."""
    if not settings.knows_callers and not settings.insecure_open and not is_loopback(settings.host):
        raise invalid_settings(
            f"host must be a loopback address while there are no API keys, got "
            f"{settings.host!r}; make keys with `nunatak key create` and name their file in "
            "NUNATAK_API_KEYS_FILE, or pass --insecure-open if a proxy keeps callers out"
        )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


REREAD_S = 1.0
"""Time between two looks at the file of keys."""

logger = logging.getLogger(__name__)


class Authenticator:
    """Finds the caller of a request. Without keys, every caller may do everything."""

    weights: Mapping[str, float] = MappingProxyType({})
    """Shares of callers by name, 1 without an entry; the mapping stays up to date."""

    def identify(self, presented: bytes | None) -> Caller | None:
        """Return the caller with this key or token; None if the caller has no access."""
        return ANYONE

    async def look_again(self) -> None:
        """Read the keys of the issuer again for a token without a known signer."""

    async def run(self) -> None:
        """Keep the keys up to date until cancelled."""


class KeyAuthenticator(Authenticator):
    """The keys of a file, which is read again whenever it changes.

    While the file is missing or broken, the last keys stay valid until they expire: a mistake of
    the operator must not lock all callers out.
    """

    def __init__(
        self,
        path: Path,
        keys: Keys,
        stamp: Stamp,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._path = path
        self._stamp, self._ring = stamp, Keyring(keys)
        self.weights = self._weights = dict(self._ring.weights)
        self._now = now
        self._pause = pause

    def identify(self, presented: bytes | None) -> Caller | None:
        return None if presented is None else self._ring.identify(presented, now=self._now())

    async def run(self) -> None:
        is_readable = True
        while True:
            await self._pause(REREAD_S)
            try:
                changed = await asyncio.to_thread(self._read_if_changed)
            except KeyFileError as error:
                if is_readable:
                    logger.error("the keys stay as they were: %s", error)  # noqa: TRY400 - a mistake of the operator
                is_readable = False
                continue
            is_readable = True
            if changed is not None:
                self._stamp, self._ring = changed
                self._weights.update(self._ring.weights)
                logger.info("read %d API keys again", len(self._ring.weights))

    def _read_if_changed(self) -> tuple[Stamp, Keyring] | None:
        if stamp_of(self._path) == self._stamp:
            return None
        keys, stamp = read_keys(self._path)
        # Prepared on this thread, because ten thousand keys take a tenth of a second.
        return stamp, Keyring(keys)


def authenticator_for(path: Path | None) -> Authenticator:
    if path is None:
        return Authenticator()
    keys, stamp = read_keys(path)
    logger.info("requests need one of %d API keys", len(keys))
    return KeyAuthenticator(path, keys, stamp)
