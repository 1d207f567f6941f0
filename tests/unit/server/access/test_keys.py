"""Laws of keys: records and rings, the file of keys, and who is let in by a key."""

import asyncio
import hashlib
import hmac
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from doubles.access import CREATED_AT, add_key, key_record
from doubles.refusals import raises
from nunatak_server.access.keys import (
    KeyAuthenticator,
    KeyFile,
    KeyRecord,
    Keyring,
    Keys,
    Scope,
    TaskList,
    authenticator_for,
    change_keys,
    check_exposure,
    digest_of,
    new_key,
    read_keys,
    stamp_of,
)
from nunatak_server.errors import KeyFileError
from nunatak_server.settings import ServerSettings

SOME_RECORD = key_record("secret").model_dump(mode="json")


@pytest.mark.parametrize(
    "presented",
    [
        *(b"", b"secre", b"secret ", b"SECRET", "s\u00e9cret".encode(), b"\xff\xfe"),
        *(b"x" * 1_000_000, digest_of(b"secret").encode(), hashlib.sha256(b"secret").digest()),
    ],
)
def test_what_is_not_the_key_is_nobodys(presented: bytes) -> None:
    assert Keyring([key_record("secret")]).identify(presented, now=CREATED_AT) is None


def test_a_key_is_looked_up_once_by_what_a_secret_makes_of_its_digest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blinded: list[tuple[bytes, bytes]] = []
    digest = hmac.digest

    def note(secret: bytes, message: bytes, name: str) -> bytes:
        blinded.append((secret, message))
        return digest(secret, message, name)

    monkeypatch.setattr(hmac, "digest", note)
    records = [key_record(f"key-{index}", name=f"name-{index}") for index in range(500)]
    found_with = set[bytes]()
    for ring in (Keyring(records), Keyring(records)):
        for presented in (b"key-0", b"key-499", b"none of them"):
            blinded.clear()
            caller = ring.identify(presented, now=CREATED_AT)
            assert (caller is None) == (presented == b"none of them")
            ((secret, message),) = blinded
            assert message == hashlib.sha256(presented).digest()
            found_with.add(secret)
    assert len(found_with) == 2


def test_new_keys_are_long_and_never_alike() -> None:
    keys = {new_key() for _ in range(1000)}

    assert len(keys) == 1000
    assert all(key.startswith("nunatak_") and len(key) == 8 + 43 for key in keys)


@pytest.mark.parametrize(
    ("patterns", "allowed", "hidden"),
    [
        (("*",), ["tone", "x"], []),
        (("tone",), ["tone"], ["tone2", "ton", "intent"]),
        (("eu-*", "tone"), ["eu-", "eu-tone", "tone"], ["eu", "us-tone", "xeu-"]),
        (("a.b*",), ["a.b", "a.bc"], ["axb", "a"]),
    ],
)
def test_a_list_allows_names_and_prefixes(
    patterns: tuple[str, ...], allowed: list[str], hidden: list[str]
) -> None:
    tasks = TaskList(patterns=patterns)

    assert [tasks.allows(name) for name in allowed] == [True] * len(allowed)
    assert [tasks.allows(name) for name in hidden] == [False] * len(hidden)
    assert tasks.has_all == ("*" in patterns)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "Support"),
        ("name", ""),
        ("sha256", "abc"),
        ("scopes", []),
        ("scopes", ["root"]),
        ("tasks", []),
        ("tasks", ["*tone"]),
        ("tasks", ["t*ne"]),
        ("tasks", ["../x"]),
        ("weight", 0),
        ("weight", float("inf")),
        ("expires_at", "2026-01-01T00:00:00"),
        ("unknown", 1),
    ],
)
def test_a_malformed_record_is_refused(field: str, value: Any) -> None:  # noqa: ANN401 - whatever
    with pytest.raises(ValidationError, match=field):
        KeyRecord.model_validate({**SOME_RECORD, field: value})


def test_names_and_keys_are_not_given_twice() -> None:
    one, other = key_record("secret", name="one"), key_record("secret", name="other")

    with pytest.raises(ValidationError, match="two names"):
        KeyFile(keys=(one, other))
    with pytest.raises(ValidationError, match="two keys"):
        KeyFile(keys=(one, key_record("else", name="one")))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def test_a_file_of_keys_is_its_owners_alone(path: Path) -> None:
    add_key(path, "one")

    assert path.stat().st_mode & 0o777 == 0o600


def test_a_change_leaves_the_file_to_whom_it_belongs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_key(path, "one")
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 12_345, 12_346)
    before = path.stat()

    add_key(path, "two")

    after = path.stat()
    assert (after.st_uid, after.st_gid, after.st_mode) == (
        before.st_uid,
        before.st_gid,
        before.st_mode,
    )

    def refuse(_descriptor: int, _user: int, _group: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "fchown", refuse)
    with pytest.raises(KeyFileError, match="belongs to user"):
        add_key(path, "three")
    assert path.stat().st_ino == after.st_ino
    assert os.listdir(path.parent) == ["keys.json"]  # noqa: PTH208 - names


def test_every_change_differs_from_the_state_before(path: Path) -> None:
    add_key(path, "one")
    before = stamp_of(path)

    change_keys(path, lambda keys: keys)

    assert stamp_of(path) != before


def test_a_change_that_fails_leaves_the_file_and_nothing_next_to_it(path: Path) -> None:
    (path.parent / ".keys.json.new").touch()  # of a killed command
    add_key(path, "one")
    content = path.read_bytes()

    with pytest.raises(ZeroDivisionError):
        change_keys(path, lambda _: 1 // 0)  # pyrefly: ignore[bad-argument-type, division-by-zero] - raises
    with pytest.raises(ValueError, match="two names"):
        change_keys(path, lambda keys: (*keys, keys[0].model_copy(update={"name": "two"})))

    assert path.read_bytes() == content
    assert os.listdir(path.parent) == ["keys.json"]  # noqa: PTH208 - names


def test_changes_at_one_time_are_all_kept(path: Path) -> None:
    names = {f"key-{index}" for index in range(16)}

    def add(name: str) -> None:
        def change(keys: Keys) -> Keys:
            # Without the lock, another change would be made meanwhile, and be lost.
            time.sleep(0.005)
            return (*keys, key_record(name, name=name))

        change_keys(path, change)

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(add, names))

    assert {key.name for key in read_keys(path)[0]} == names


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"keys": 1}',
        b'{"format": 2}',
        b'{"keys": [{"name": "swordfish"}]}',
        b'{"keys": [], "swordfish": 1}',
        b"\xff",
        b"\0" * 100,
    ],
)
def test_a_broken_file_is_reported_without_what_it_holds(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)

    with pytest.raises(KeyFileError) as caught:
        read_keys(path)

    assert str(path) in str(caught.value)
    assert "'swordfish'" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_to_is_not_trusted(path: Path, mode: int) -> None:
    add_key(path, "one")
    path.chmod(mode)

    with pytest.raises(KeyFileError, match="chmod 600"):
        read_keys(path)


def test_a_missing_file_and_a_folder_are_reported(path: Path) -> None:
    with pytest.raises(KeyFileError):
        read_keys(path.parent)
    for read in (read_keys, authenticator_for, stamp_of):
        with pytest.raises(KeyFileError, match="No such file"):
            read(path)


def test_a_pipe_is_refused_and_keeps_nobody_waiting(path: Path) -> None:
    os.mkfifo(path)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_keys, path)
        try:
            with pytest.raises(KeyFileError, match="not a regular file"):
                reading.result(timeout=10)
        finally:
            # A writer releases a reader that waits.
            os.close(os.open(path, os.O_RDWR))


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


def test_a_door_with_no_keys_takes_nobody(path: Path) -> None:
    change_keys(path, lambda keys: keys)

    authenticator = authenticator_for(path)

    assert authenticator.identify(None) is None
    assert authenticator.identify(b"") is None


def test_keys_that_come_and_go_are_seen_without_a_restart(path: Path) -> None:
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
    path: Path,
) -> None:
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
def test_another_address_needs_keys_or_a_word(host: str, path: Path) -> None:
    with raises("invalid_settings", match="nunatak key create"):
        check_exposure(ServerSettings(host=host))
    check_exposure(ServerSettings(host=host, insecure_open=True))
    check_exposure(ServerSettings(host=host, api_keys_file=path))


def test_time_passes_for_keys_without_the_file(path: Path) -> None:
    key = add_key(path, "one")
    (record,) = read_keys(path)[0]
    change_keys(path, lambda _: (record.model_copy(update={"expires_at": NOW}),))
    times = iter([NOW - timedelta(seconds=1), NOW])

    authenticator = KeyAuthenticator(path, *read_keys(path), now=lambda: next(times))

    assert authenticator.identify(sent(key)) is not None
    assert authenticator.identify(sent(key)) is None
