"""Callers and API keys.

A `Caller` has a name, scopes, a list of tasks and a weight. A `KeyRecord` is the stored part of one
key, and a `Keyring` finds the caller of a key.

A key is 256 random bits, so it cannot be guessed. The stored SHA-256 of a key needs no salt and no
slow hash, because people do not choose keys. The key cannot be derived from the stored digest.
"""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from nunatak_contract.names import MAX_NAME_LENGTH, NAME_PATTERN, Digest

EVERY_TASK: Final = "*"


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


ALL_TASKS: Final = TaskList()


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A caller; `weight` is the share of a busy server relative to other callers."""

    name: str
    scopes: frozenset[Scope]
    tasks: TaskList = ALL_TASKS
    weight: float = 1.0


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


class KeyRecord(BaseModel):
    """The stored part of one key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: KeyName
    sha256: Digest
    scopes: Annotated[frozenset[Scope], Field(min_length=1)]
    tasks: Annotated[tuple[TaskPattern, ...], Field(min_length=1)] = (EVERY_TASK,)
    weight: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 1.0
    created_at: AwareDatetime
    expires_at: AwareDatetime | None = None

    @property
    def caller(self) -> Caller:
        return Caller(
            name=self.name,
            scopes=self.scopes,
            tasks=TaskList(patterns=self.tasks),
            weight=self.weight,
        )

    def has_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and now >= self.expires_at


class KeyFile(BaseModel):
    """The content of a file of keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
    """Finds the caller of a key. The time does not depend on the number of keys.

    The look-up uses an HMAC of the digest under a secret of this object. Callers cannot compute
    this HMAC, so the time of a look-up reveals nothing about stored digests.
    """

    def __init__(self, keys: Sequence[KeyRecord]) -> None:
        self._secret = secrets.token_bytes(KEY_BYTES)
        self._callers = {self._blinded(bytes.fromhex(it.sha256)): (it, it.caller) for it in keys}

    def identify(self, presented: bytes, *, now: datetime) -> Caller | None:
        found = self._callers.get(self._blinded(hashlib.sha256(presented).digest()))
        if found is None:
            return None
        key, caller = found
        return None if key.has_expired(now) else caller

    def _blinded(self, digest: bytes) -> bytes:
        return hmac.digest(self._secret, digest, "sha256")
