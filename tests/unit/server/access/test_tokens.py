"""Laws of tokens: who is let in by a token, and when the keys of the issuer are read."""

import asyncio
from base64 import urlsafe_b64decode
from collections.abc import Callable, Generator
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.issuers import (
    DISCOVERY,
    Issuer,
    handmade,
    running_issuer,
    signed_with_the_public_key,
    unsigned,
)
from doubles.refusals import raises
from doubles.serving import ManualClock, make_settings
from nunatak_contract.errors import NunatakError
from nunatak_server.access.keys import Caller, KeyAuthenticator, Scope, TaskList
from nunatak_server.access.tokens import (
    LEEWAY_S,
    MAX_AGE_S,
    MAX_TOKEN_BYTES,
    PAUSE_S,
    REFRESH_S,
    IssuerKeys,
    TokenAuthenticator,
    read_signers,
)
from nunatak_server.errors import UnknownSignerError

NAMES = tuple(f"k{number}" for number in range(200))
MARGIN_S = 5
TOO_LATE_S = LEEWAY_S + MARGIN_S


def spliced(issuer: Issuer) -> str:
    mine, theirs = (
        issuer.token().split("."),
        issuer.token(sub="other", nunatak_tasks="*").split("."),
    )
    return ".".join((mine[0], theirs[1], mine[2]))


Forger = Callable[[Issuer], str]
FORGED: dict[str, Forger] = {
    "expired": lambda it: it.token(exp=it.claims()["iat"] - TOO_LATE_S),
    "without an end": lambda it: it.token(exp=None),
    "ends at infinity": lambda it: it.token(exp=float("inf")),
    "ends with a word": lambda it: it.token(exp="never"),
    "not yet valid": lambda it: it.token(nbf=it.claims()["iat"] + 2 * TOO_LATE_S),
    "made in the future": lambda it: it.token(iat=it.claims()["iat"] + 2 * TOO_LATE_S),
    "for another audience": lambda it: it.token(aud="another"),
    "for a longer audience": lambda it: it.token(aud="nunatak2"),
    "for nobody": lambda it: it.token(aud=None),
    "for an empty list": lambda it: it.token(aud=[]),
    "of another issuer": lambda it: it.token(iss="https://issuer.example"),
    "of a longer issuer": lambda it: it.token(iss=it.url + "/"),
    "of no issuer": lambda it: it.token(iss=None),
    "of a foreign key with the same id": lambda it: it.token(key="foreign"),
    "of an unknown key": lambda it: it.token(header={"kid": "unknown"}),
    "without a key id": lambda it: handmade({"alg": "RS256"}, it.claims(), b"x"),
    "with a list as key id": lambda it: handmade({"alg": "RS256", "kid": []}, it.claims(), b"x"),
    "with a list as algorithm": lambda it: handmade({"alg": [], "kid": "first"}, it.claims(), b"x"),
    "algorithm none": lambda it: unsigned(it, "none"),
    "algorithm nOnE": lambda it: unsigned(it, "nOnE"),
    "without an algorithm": lambda it: handmade({"kid": "first"}, it.claims(), b""),
    "HS256 by the public key": signed_with_the_public_key,
    "an algorithm that is not allowed": lambda it: handmade(
        {"alg": "PS256", "kid": "first"}, it.claims(), b"x"
    ),
    "another algorithm than the key's": lambda it: handmade(
        {"alg": "ES256", "kid": "first"}, it.claims(), b"x" * 64
    ),
    "its own key": lambda it: it.token(
        key="foreign", header={"jku": "http://127.0.0.1:1/", "jwk": {"kty": "oct", "k": "eA"}}
    ),
    "an unknown critical field": lambda it: it.token(header={"crit": ["x"], "x": 1}),
    "without its signature": lambda it: it.token().rpartition(".")[0] + ".",
    "claims of another token": spliced,
    "too long": lambda it: it.token(padding="x" * MAX_TOKEN_BYTES),
    "without a tenant": lambda it: it.token(sub=None),
    "a tenant with a line break": lambda it: it.token(sub="acme\nadmin"),
    "an empty tenant": lambda it: it.token(sub=""),
    "without tasks": lambda it: it.token(nunatak_tasks=None),
    "an empty list of tasks": lambda it: it.token(nunatak_tasks=[]),
    "tasks that are no names": lambda it: it.token(nunatak_tasks=["to*ne"]),
}
"""Tokens that must not open anything."""


SCOPED: list[tuple[dict[str, Any], dict[str, Any], set[str]]] = [
    ({"scope": None}, {}, set()),
    ({"scope": "predict read admin"}, {}, set()),
    ({"scope": {"nunatak:admin": True}}, {}, set()),
    ({"scope": ["nunatak:admin", 7, {}]}, {}, {"admin"}),
    (
        {"realm_access": {"roles": ["admin", "nunatak:read"]}},
        {"oidc_scopes_claim": "realm_access.roles"},
        {"read"},
    ),
    ({"a.b/c": "nunatak:read"}, {"oidc_scopes_claim": "a.b/c"}, {"read"}),
    ({"realm_access": "nunatak:admin"}, {"oidc_scopes_claim": "realm_access.roles"}, set[str]()),
]
"""Claims, settings, and the scopes that they give."""


@pytest.fixture(params=["RS256", "ES256"], scope="module")
def issuer(request: pytest.FixtureRequest) -> Generator[Issuer]:
    with running_issuer(request.param) as running:
        yield running


@pytest.fixture
def fresh() -> Generator[Issuer]:
    with running_issuer() as running:
        yield running


def door_of(
    issuer: Issuer,
    clock: ManualClock | None = None,
    *,
    keys: KeyAuthenticator | None = None,
    **changes: object,
) -> TokenAuthenticator:
    own = make_settings(oidc_issuer=issuer.url, **changes)
    signers = IssuerKeys(lambda: read_signers(own), clock=clock or ManualClock())
    return TokenAuthenticator(own, keys, signers=signers)


@pytest.fixture(scope="module")
def door(issuer: Issuer) -> TokenAuthenticator:
    return door_of(issuer)


async def meet(door: TokenAuthenticator, token: str | bytes) -> Caller | None:
    """Identify a caller as the routes do."""
    presented = token.encode() if isinstance(token, str) else token
    try:
        return door.identify(presented)
    except UnknownSignerError:
        await door.look_again()
        return door.identify(presented)


async def test_a_good_token_is_a_caller_as_a_key_is(issuer: Issuer) -> None:
    assert await meet(door_of(issuer), issuer.token()) == Caller(
        name="token:acme",
        scopes=frozenset({Scope.PREDICT, Scope.READ}),
        tasks=TaskList(patterns=("tone", "mine-*")),
    )


@pytest.mark.parametrize("forged", FORGED)
async def test_a_wrong_token_opens_nothing(
    issuer: Issuer, door: TokenAuthenticator, forged: str
) -> None:
    assert await meet(door, issuer.token()) is not None

    with raises("invalid_token"):
        await meet(door, FORGED[forged](issuer))


async def test_clocks_may_differ_by_the_leeway(issuer: Issuer) -> None:
    now, within = issuer.claims()["iat"], LEEWAY_S - MARGIN_S

    assert await meet(door_of(issuer), issuer.token(exp=now - within)) is not None
    assert await meet(door_of(issuer), issuer.token(nbf=now + within)) is not None


@pytest.mark.parametrize(
    ("claims", "settings", "scopes"),
    SCOPED,
    ids=["none", "of others", "an object", "a list", "a path", "a name with dots", "no path"],
)
async def test_only_own_scopes_of_the_named_claim_count(
    issuer: Issuer, claims: dict[str, Any], settings: dict[str, Any], scopes: set[str]
) -> None:
    caller = await meet(door_of(issuer, **settings), issuer.token(**claims))

    assert caller is not None
    assert caller.scopes == scopes


async def test_keys_that_rotate_are_found_at_once_and_old_keys_open_nothing(fresh: Issuer) -> None:
    clock = ManualClock()
    door, old = door_of(fresh, clock), fresh.token()
    assert await meet(door, old) is not None

    fresh.rotate("second")
    clock.now += PAUSE_S

    assert await meet(door, fresh.token()) is not None
    with raises("invalid_token"):
        await meet(door, old)


async def test_a_key_that_the_issuer_drops_opens_nothing_after_the_next_look(fresh: Issuer) -> None:
    clock = ManualClock()
    own, old = make_settings(oidc_issuer=fresh.url), fresh.token()

    async def pause(seconds: float) -> None:
        assert seconds == REFRESH_S
        if clock.now:
            raise asyncio.CancelledError
        assert door.identify(old.encode()) is not None
        fresh.rotate("second")
        clock.now += seconds

    signers = IssuerKeys(lambda: read_signers(own), clock=clock, pause=pause)
    door = TokenAuthenticator(own, None, signers=signers)
    with pytest.raises(asyncio.CancelledError):
        await door.run()

    with raises("invalid_token"):
        door.identify(old.encode())


async def test_a_flood_of_unknown_keys_asks_the_issuer_once_in_a_while(fresh: Issuer) -> None:
    clock = ManualClock()
    door = door_of(fresh, clock)
    tokens = [handmade({"alg": "RS256", "kid": name}, {}, b"x") for name in NAMES]

    for looks in (1, 2, 3):
        met = await asyncio.gather(*(meet(door, it) for it in tokens), return_exceptions=True)
        assert {getattr(it, "code", None) for it in met} == {"invalid_token"}
        assert len(fresh.asked) == 2 * looks
        clock.now += PAUSE_S


async def test_an_algorithm_that_is_not_taken_asks_the_issuer_nothing(fresh: Issuer) -> None:
    with raises("invalid_token"):
        await meet(door_of(fresh), unsigned(fresh, "none"))

    assert fresh.asked == []


async def test_without_keys_no_token_opens_anything(fresh: Issuer) -> None:
    """The issuer is away at the start, comes, and goes for longer than its keys are kept."""
    clock, token = ManualClock(), fresh.token()
    door = door_of(fresh, clock)
    fresh.is_down = True
    with raises("issuer_unavailable"):
        await meet(door, token)

    fresh.is_down = False
    clock.now += PAUSE_S
    assert await meet(door, token) is not None

    fresh.is_down = True
    clock.now += MAX_AGE_S
    assert await meet(door, token) is not None
    with raises("issuer_unavailable"):
        await meet(door, fresh.token(header={"kid": "newer"}))
    clock.now += 1
    with raises("issuer_unavailable"):
        await meet(door, token)

    fresh.is_down = False
    clock.now += PAUSE_S
    assert await meet(door, token) is not None


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        (DISCOVERY, b'{"issuer": "https://issuer.example", "jwks_uri": "https://issuer.example/"}'),
        (DISCOVERY, b'{"issuer": "URL", "jwks_uri": "http://issuer.example/keys"}'),
        (DISCOVERY, b'{"issuer": "URL", "jwks_uri": "file:///etc/passwd"}'),
        (DISCOVERY, b"[]"),
        ("/keys", b"[]"),
        ("/keys", b'{"keys": []}'),
        ("/keys", b'{"keys": [7]}'),
        ("/keys", b'{"keys": [{"kty": "oct", "k": "eA", "kid": "first"}]}'),
        ("/keys", b'{"keys": [{"kty": "RSA", "alg": ["RS256"], "n": "AQAB", "e": "AQAB"}]}'),
        ("/keys", b"x" * 2_000_000),
        ("/keys", b"\xff"),
    ],
    ids=lambda it: it[:60].decode("latin-1") if isinstance(it, bytes) else it,
)
async def test_a_wrong_answer_of_the_issuer_gives_no_keys(
    fresh: Issuer, path: str, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    fresh.documents[path] = answer.replace(b"URL", fresh.url.encode())

    with pytest.raises(NunatakError) as refused:
        await meet(door_of(fresh), fresh.token())

    assert refused.value.code in {"invalid_token", "issuer_unavailable"}
    is_refused = b'"oct"' not in answer
    assert ("the keys of the issuer stay as they were" in caplog.text) is is_refused


@pytest.mark.parametrize(
    ("change", "opens"),
    [
        ((b"}", b', "more": 1}'), True),
        ((b'"use": "sig"', b'"use": "enc"'), False),
        ((b"[", b'[7, {"kty": "RSA", "alg": ["RS256"], "n": "AQAB", "e": "AQAB"}, '), True),
        ((b"]", b', {"kty": "oct", "k": "eA", "kid": ["first"]}]'), True),
        ((b"]", b', {"kty": "oct", "k": "eA", "kid": "x", "use": {}}]'), True),
    ],
    ids=["unknown-field", "key-for-encryption", "beside-alg", "beside-kid", "beside-use"],
)
async def test_only_keys_for_signatures_open_whatever_fields_they_have(
    fresh: Issuer, change: tuple[bytes, bytes], *, opens: bool
) -> None:
    fresh.documents["/keys"] = fresh.answer("/keys").replace(*change)

    with nullcontext() if opens else raises("invalid_token"):
        assert await meet(door_of(fresh), fresh.token()) is not None


async def test_the_named_url_of_the_keys_needs_no_discovery(fresh: Issuer) -> None:
    door = door_of(fresh, oidc_jwks_url=f"{fresh.url}/named")

    assert await meet(door, fresh.token()) is not None
    assert fresh.asked == ["/named"]


@pytest.fixture(scope="module")
def seasoned() -> Generator[tuple[TokenAuthenticator, str]]:
    """An authenticator that knows its keys, and a good token."""
    with running_issuer() as issuer:
        door = door_of(issuer)
        asyncio.run(door.look_again())
        assert door.identify(issuer.token().encode()) is not None
        yield door, issuer.token()


@settings(deadline=None)
@given(data=st.data())
def test_a_mangled_token_is_refused_and_breaks_nothing(
    seasoned: tuple[TokenAuthenticator, str], data: st.DataObject
) -> None:
    door, good = seasoned
    parts = good.encode().split(b".")
    place = data.draw(st.integers(0, 2))
    part = parts[place]
    begin = data.draw(st.integers(0, len(part)))
    end = data.draw(st.integers(begin, len(part)))
    cut = part[:begin] + data.draw(st.binary(max_size=40)) + part[end:]
    parts[place] = data.draw(st.sampled_from([cut, b"", part * 2, b"e30", b"W10", part[:-2]]))
    mangled = b".".join(parts)

    try:
        outcome = door.identify(mangled)
    except NunatakError as error:
        outcome = error.code
    # The last letter of a part has bits that say nothing, and so has padding.
    is_same = isinstance(outcome, Caller) and bytes_of(mangled) == bytes_of(good.encode())
    assert is_same or outcome in {None, "invalid_token"}


def bytes_of(token: bytes) -> list[bytes]:
    return [urlsafe_b64decode(part + b"=" * (-len(part) % 4)) for part in token.split(b".")]
