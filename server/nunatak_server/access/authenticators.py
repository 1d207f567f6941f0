"""Exposure: a server without keys must not be reachable from other machines by accident.

Authenticators: how an application finds out who asks, by keys or not at all.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from nunatak_server.access.files import Stamp, StampedKeys, read_keys, stamp_of
from nunatak_server.access.keys import ANYONE, Caller, Keyring
from nunatak_server.errors import InvalidSettingsError, KeyFileError
from nunatak_server.settings import ServerSettings


def check_exposure(settings: ServerSettings) -> None:
    """Refuse to be open to other machines, unless that is what was asked for.

    Raises:
        InvalidSettingsError: there are no keys, and the address is not this machine's own.
    """
    if (
        settings.api_keys_file is None
        and not settings.insecure_open
        and not is_loopback(settings.host)
    ):
        raise InvalidSettingsError(
            f"host must be a loopback address as long as there are no API keys, got "
            f"{settings.host!r}; make keys with `nunatak key create` and name their file in "
            "NUNATAK_API_KEYS_FILE, or say --insecure-open where something else keeps callers out"
        )


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address; a name may mean anything but localhost."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


REREAD_S = 1.0

logger = logging.getLogger(__name__)


class Authenticator(Protocol):
    """Tells who asks."""

    @property
    def weights(self) -> Mapping[str, float]:
        """Shares of callers by name, 1 for all others; one mapping that is kept up to date."""
        ...

    def identify(self, presented: bytes | None) -> Caller | None:
        """Return who sends this key, or nothing; None is a caller who may not be here."""
        ...

    async def run(self) -> None:
        """Follow what changes, until cancelled."""
        ...


class OpenAuthenticator:
    """Everybody may do everything."""

    weights: Mapping[str, float] = MappingProxyType({})

    def identify(self, presented: bytes | None) -> Caller | None:
        """Return the one caller there is, whatever was sent."""
        return ANYONE

    async def run(self) -> None:
        """Nothing changes."""


class KeyAuthenticator:
    """The keys of a file, as it was when it could last be read.

    The file is read again when it changes. One that is missing or broken changes nothing: a slip
    of an operator must not lock everybody out, and keys that expire do so all the same.
    """

    def __init__(
        self,
        path: Path,
        keys: StampedKeys,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._path = path
        self._known = _known(keys)
        self.weights = dict(self._known.weights)
        self._now = now
        self._pause = pause

    def identify(self, presented: bytes | None) -> Caller | None:
        """Return who sends this key, or None if none was sent or it is not valid now."""
        return None if presented is None else self._known.ring.identify(presented, now=self._now())

    async def run(self) -> None:
        """Read the file again whenever it has changed."""
        is_readable = True
        while True:
            await self._pause(REREAD_S)
            try:
                changed = await asyncio.to_thread(self._read_if_changed)
            except KeyFileError as error:
                if is_readable:
                    logger.error("the keys stay as they were: %s", error)  # noqa: TRY400 - no bug
                is_readable = False
                continue
            is_readable = True
            if changed is not None:
                self._known = changed
                self.weights.update(changed.weights)
                logger.info("read %d API keys again", len(changed.weights))

    def _read_if_changed(self) -> "_Known | None":
        if stamp_of(self._path) == self._known.stamp:
            return None
        # On this thread: ten thousand keys take a tenth of a second to prepare.
        return _known(read_keys(self._path))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What a file of keys said, ready for use."""

    stamp: Stamp
    ring: Keyring
    weights: Mapping[str, float]


def _known(keys: StampedKeys) -> _Known:
    weights = {key.name: key.weight for key in keys.keys}
    return _Known(stamp=keys.stamp, ring=Keyring(keys.keys), weights=weights)


def authenticator_for(path: Path | None) -> Authenticator:
    """Return the authenticator of a file of keys, or the open one if there is none.

    Raises:
        KeyFileError: the file cannot be read.
    """
    if path is None:
        return OpenAuthenticator()
    keys = read_keys(path)
    logger.info("requests need one of %d API keys", len(keys.keys))
    return KeyAuthenticator(path, keys)
