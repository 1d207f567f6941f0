import hashlib
import hmac
from typing import Any

import pytest
from pydantic import ValidationError

from doubles.access import CREATED_AT, key_record
from nunatak_server.access.keys import (
    KeyFile,
    KeyRecord,
    Keyring,
    Scope,
    TaskList,
    digest_of,
    new_key,
)

SOME_RECORD = key_record("secret").model_dump(mode="json")


def test_a_key_is_known_by_its_digest_alone() -> None:
    key = new_key()
    ring = Keyring([key_record("other", name="other"), key_record(key, name="support")])

    caller = ring.identify(key.encode(), now=CREATED_AT)

    assert caller is not None
    assert (caller.name, caller.scopes) == ("support", {Scope.PREDICT})
    assert key not in key_record(key).model_dump_json()


@pytest.mark.parametrize(
    "presented",
    [b"", b"secre", b"secret ", b"SECRET", "s\u00e9cret".encode(), b"\xff\xfe", b"x" * 1_000_000],
)
def test_what_is_not_the_key_is_nobodys(presented: bytes) -> None:
    assert Keyring([key_record("secret")]).identify(presented, now=CREATED_AT) is None


def test_the_digest_of_a_key_is_no_key() -> None:
    ring = Keyring([key_record("secret")])

    assert ring.identify(digest_of(b"secret").encode(), now=CREATED_AT) is None
    assert ring.identify(hashlib.sha256(b"secret").digest(), now=CREATED_AT) is None


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
