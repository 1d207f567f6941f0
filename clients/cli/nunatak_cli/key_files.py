"""Keys in and out of their file."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import ValidationError

from nunatak_cli.errors import InvalidOptionError
from nunatak_server.access.files import Keys, change_keys
from nunatak_server.access.keys import KeyRecord, digest_of, new_key


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRequest:
    """What a new key shall be for."""

    name: str
    scopes: tuple[str, ...]
    tasks: tuple[str, ...]
    weight: float
    days: int | None


def create_key(file: Path, wanted: KeyRequest) -> str:
    """Make a key, write down what is kept of it, and return it.

    Raises:
        InvalidOptionError: the name or a task is malformed, or the name is taken.
        KeyFileError: the file cannot be read or written.
    """
    key = new_key()
    record = _record(wanted, sha256=digest_of(key.encode()))

    def add(keys: Keys) -> Keys:
        if any(each.name == record.name for each in keys):
            raise InvalidOptionError(
                f"there is a key named {record.name!r} already; choose another name or revoke it"
            )
        return (*keys, record)

    change_keys(file, add)
    return key


def revoke_key(file: Path, name: str) -> None:
    """Forget a key.

    Raises:
        InvalidOptionError: there is none of this name.
        KeyFileError: the file cannot be read or written.
    """

    def remove(keys: Keys) -> Keys:
        kept = tuple(each for each in keys if each.name != name)
        if len(kept) == len(keys):
            raise InvalidOptionError(f"no key is named {name!r}; `nunatak key list` shows them")
        return kept

    change_keys(file, remove)


def _record(wanted: KeyRequest, *, sha256: str) -> KeyRecord:
    now = datetime.now(UTC).replace(microsecond=0)
    try:
        return KeyRecord.model_validate(
            {
                "name": wanted.name,
                "sha256": sha256,
                "scopes": wanted.scopes,
                "tasks": wanted.tasks,
                "weight": wanted.weight,
                "created_at": now,
                "expires_at": None if wanted.days is None else now + timedelta(days=wanted.days),
            }
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise InvalidOptionError(f"{place}: {first['msg']}, got {first['input']!r}") from error
