import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from doubles.access import add_key
from doubles.refusals import raises
from nunatak_server.access.keys import (
    ANYONE,
    Authenticator,
    KeyAuthenticator,
    Scope,
    authenticator_for,
    change_keys,
    check_exposure,
    read_keys,
)
from nunatak_server.errors import KeyFileError
from nunatak_server.settings import ServerSettings

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def door_of(path: Path, steps: list[Callable[[], None]]) -> KeyAuthenticator:
    """An authenticator that does one of the steps at each pause."""
    remaining = iter(steps)

    async def pause(seconds: float) -> None:
        assert seconds > 0
        step = next(remaining, None)
        if step is None:
            raise asyncio.CancelledError
        step()

    return KeyAuthenticator(path, *read_keys(path), now=lambda: NOW, pause=pause)


def follow(authenticator: KeyAuthenticator) -> None:
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(authenticator.run())


def sent(headers: dict[str, str]) -> bytes:
    return headers["authorization"].removeprefix("Bearer ").encode()


def test_an_open_door_takes_everybody() -> None:
    assert Authenticator().identify(None) is ANYONE
    assert Authenticator().identify(b"whatever") is ANYONE
    assert type(authenticator_for(None)) is Authenticator


def test_a_door_with_no_keys_takes_nobody(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    change_keys(path, lambda keys: keys)

    authenticator = authenticator_for(path)

    assert authenticator.identify(None) is None
    assert authenticator.identify(b"") is None


def test_a_file_of_keys_that_is_missing_at_the_start_is_reported(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError):
        authenticator_for(tmp_path / "keys.json")


def test_keys_that_come_and_go_are_seen_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    old = add_key(path, "old", scopes=[Scope.READ])
    new: dict[str, str] = {}

    def exchange() -> None:
        change_keys(path, lambda _: ())
        new.update(add_key(path, "new"))

    authenticator = door_of(path, [exchange])
    assert authenticator.identify(sent(old)) is not None
    follow(authenticator)

    assert authenticator.identify(sent(old)) is None
    caller = authenticator.identify(sent(new))
    assert caller is not None
    assert caller.name == "new"


def test_a_file_that_breaks_or_goes_leaves_the_keys_as_they_were_until_it_is_mended(
    tmp_path: Path,
) -> None:
    path = tmp_path / "keys.json"
    key = add_key(path, "one")

    def spoil() -> None:
        path.write_text("{")

    def look() -> None:
        assert authenticator.identify(sent(key)) is not None

    def mend() -> None:
        change_keys(path, lambda keys: keys)

    authenticator = door_of(path, [spoil, look, path.unlink, look, mend])
    follow(authenticator)

    assert authenticator.identify(sent(key)) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_a_loopback_address_needs_no_keys(host: str) -> None:
    check_exposure(ServerSettings(host=host))


@pytest.mark.parametrize(
    "host", ["192.0.2.1", "::", "fe80::1", "10.0.0.1", "example.org", "", "127.0.0.1.nip.io"]
)
def test_another_address_needs_keys_or_a_word(host: str, tmp_path: Path) -> None:
    with raises("invalid_settings", match="nunatak key create"):
        check_exposure(ServerSettings(host=host))
    check_exposure(ServerSettings(host=host, insecure_open=True))
    check_exposure(ServerSettings(host=host, api_keys_file=tmp_path / "keys.json"))


def test_time_passes_for_keys_without_the_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = add_key(path, "one")
    (record,) = read_keys(path)[0]
    change_keys(path, lambda _: (record.model_copy(update={"expires_at": NOW}),))
    times = iter([NOW - timedelta(seconds=1), NOW])

    authenticator = KeyAuthenticator(path, *read_keys(path), now=lambda: next(times))

    assert authenticator.identify(sent(key)) is not None
    assert authenticator.identify(sent(key)) is None
