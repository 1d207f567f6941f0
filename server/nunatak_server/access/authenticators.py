"""Authenticators find the caller of a request, with keys or without."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType

from nunatak_contract.errors import NunatakError
from nunatak_server.access.keys import (
    ANYONE,
    Caller,
    Keyring,
    Stamp,
    StampedKeys,
    read_keys,
    stamp_of,
)
from nunatak_server.errors import KeyFileError
from nunatak_server.settings import ServerSettings


def check_exposure(settings: ServerSettings) -> None:
    """Refuse to listen to other machines without keys, unless `insecure_open` is set."""
    if not settings.knows_callers and not settings.insecure_open and not is_loopback(settings.host):
        raise NunatakError(
            "invalid_settings",
            problem=f"host must be a loopback address while there are no API keys, got "
            f"{settings.host!r}; make keys with `nunatak key create` and name their file in "
            "NUNATAK_API_KEYS_FILE, or pass --insecure-open if a proxy keeps callers out",
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
        keys: StampedKeys,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._path = path
        self._stamp, self._ring = keys.stamp, Keyring(keys.keys)
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
        keys = read_keys(self._path)
        # Prepared on this thread, because ten thousand keys take a tenth of a second.
        return keys.stamp, Keyring(keys.keys)


def authenticator_for(path: Path | None) -> Authenticator:
    if path is None:
        return Authenticator()
    keys = read_keys(path)
    logger.info("requests need one of %d API keys", len(keys.keys))
    return KeyAuthenticator(path, keys)
