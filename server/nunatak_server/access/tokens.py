"""Tokens of an OpenID Connect issuer: JSON Web Tokens (RFC 7519) in the place of API keys.

The keys of the issuer are read in the background. A token that names an unknown key makes the
server read the keys again, at most once in `PAUSE_S`, however many such tokens come. Nothing of a
token is logged or repeated.
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, cast

import httpx
import jwt
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from nunatak_client.transport import tls_context
from nunatak_contract.errors import NunatakError
from nunatak_contract.upstreams import UnusableReplyError
from nunatak_server.access.keys import (
    TOKEN_PREFIX,
    Authenticator,
    Caller,
    Scope,
    TaskList,
    TaskPattern,
)
from nunatak_server.errors import UnknownSignerError
from nunatak_server.outgoing import http_client, whole_body
from nunatak_server.settings import SafeUrl, ServerSettings

REFRESH_S: Final = 300.0
PAUSE_S: Final = 10.0
"""Least time between two looks at the keys of the issuer."""
MAX_AGE_S: Final = 3600.0
"""Time for which the issuer's keys are kept without another look."""
TIMEOUT_S: Final = 5.0
LEEWAY_S: Final = 30.0
"""Most difference between the clocks of the issuer and of this server."""
MAX_TOKEN_BYTES: Final = 16 * 1024
MAX_ANSWER_BYTES: Final = 1024 * 1024
SCOPES: Final = {f"nunatak:{scope}": scope for scope in Scope}
"""The scopes by their names in tokens, where a bare `admin` would be somebody else's."""

_TENANT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:|@-]{0,99}")
_TASKS: Final = TypeAdapter(Annotated[tuple[TaskPattern, ...], Field(min_length=1)])
_REASONS: Final[Mapping[type[Exception], str]] = {
    jwt.ExpiredSignatureError: "it has expired",
    jwt.ImmatureSignatureError: "it is not valid yet",
    jwt.InvalidAudienceError: "it is for another audience",
    jwt.InvalidIssuerError: "it is of another issuer",
    jwt.InvalidSignatureError: "its signature is wrong",
    jwt.MissingRequiredClaimError: "it must have exp, iss and aud",
}

logger = logging.getLogger(__name__)

Signers = Mapping[str, jwt.PyJWK]
"""The keys of an issuer by key id. A key has one kind of signature (RFC 8725, section 3.1)."""


class _Discovery(BaseModel):  # OpenID Connect Discovery 1.0, section 3
    issuer: str
    jwks_uri: SafeUrl


class _KeySet(BaseModel):  # RFC 7517, section 5
    keys: list[Any]

    def usable(self) -> list[dict[str, Any]]:
        """Return the keys without those that PyJWT cannot pass over: they would hide the others."""
        keys = (cast("dict[str, Any]", it) for it in self.keys if isinstance(it, dict))
        names = ("kid", "alg", "use")
        return [it for it in keys if all(isinstance(it.get(name), str | None) for name in names)]


class IssuerKeys:
    """The keys of an issuer, read again in the background; belongs to the event loop thread."""

    def __init__(
        self,
        read: Callable[[], Awaitable[Signers]],
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._read_keys, self._clock, self._pause = read, clock, pause
        self._keys: Signers = {}
        self._confirmed_at = self._tried_at = -float("inf")
        self._reading: asyncio.Task[None] | None = None

    def find(self, key_id: str) -> jwt.PyJWK:
        has_keys = self._clock() - self._confirmed_at <= MAX_AGE_S
        if not has_keys or key_id not in self._keys:
            # After a look that failed, nobody knows whether the issuer has the key.
            raise UnknownSignerError(has_keys=has_keys and self._confirmed_at >= self._tried_at)
        return self._keys[key_id]

    async def look_again(self) -> None:
        """Read the keys, all callers together, unless they were read a moment ago."""
        if self._reading is None or self._reading.done():
            if self._clock() - self._tried_at < PAUSE_S:
                return
            self._tried_at = self._clock()
            self._reading = asyncio.create_task(self._read())
        await asyncio.wait({self._reading})

    async def run(self) -> None:
        while True:
            await self.look_again()
            await self._pause(REFRESH_S)

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                self._keys = await self._read_keys()
        except Exception as error:  # noqa: BLE001 - whatever the issuer answers
            reason = str(error) or type(error).__name__
            logger.warning("the keys of the issuer stay as they were: %s", reason)
        else:
            self._confirmed_at = self._clock()


async def read_signers(settings: ServerSettings) -> Signers:
    url, issuer = settings.oidc_jwks_url, settings.oidc_issuer
    if not url:
        place = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        found = _Discovery.model_validate_json(await _get(place))
        if found.issuer != issuer:
            raise ValueError(f"{place} must be of issuer {issuer}, got {found.issuer}")
        url = found.jwks_uri
    keys = _KeySet.model_validate_json(await _get(url)).usable()
    # A thousand keys take a tenth of a second.
    read = await asyncio.to_thread(jwt.PyJWKSet, keys)
    return {it.key_id: it for it in read.keys if it.key_id and it.public_key_use in {None, "sig"}}


async def _get(url: str) -> bytes:
    # The event loop would stand still while the certificates are read.
    trusted = await asyncio.to_thread(tls_context, httpx.URL(url))
    try:
        async with http_client(verify=trusted) as client:
            reply = await client.send(client.build_request("GET", url), stream=True)
            return await whole_body(reply, max_bytes=MAX_ANSWER_BYTES)
    except UnusableReplyError as error:
        raise ValueError(f"{url}: {error}") from None


class TokenAuthenticator(Authenticator):
    def __init__(
        self,
        settings: ServerSettings,
        keys: Authenticator | None,
        *,
        signers: IssuerKeys | None = None,
    ) -> None:
        self._settings = settings
        self._algorithms = settings.oidc_algorithms.split(",")
        self._keys = keys
        self._signers = signers or IssuerKeys(lambda: read_signers(settings))
        if keys is not None:
            self.weights = keys.weights

    def identify(self, presented: bytes | None) -> Caller | None:
        # A key has no dots, and a signed token has two.
        if presented is not None and presented.count(b".") == 2:
            return self._caller_in(self._claims_of(presented))
        return None if self._keys is None else self._keys.identify(presented)

    async def look_again(self) -> None:
        await self._signers.look_again()

    async def run(self) -> None:
        with_keys = () if self._keys is None else (self._keys.run(),)
        await asyncio.gather(self._signers.run(), *with_keys)

    def _claims_of(self, token: bytes) -> Mapping[str, Any]:
        if len(token) > MAX_TOKEN_BYTES:
            raise _refused(f"it has more than {MAX_TOKEN_BYTES} bytes")
        try:
            header = jwt.get_unverified_header(token)
            key_id = header.get("kid")
            if header.get("alg") not in self._algorithms or not isinstance(key_id, str):
                raise _refused(
                    f"it needs a key id, and a signature {' or '.join(self._algorithms)}"
                )
            return jwt.decode(
                token,
                self._signers.find(key_id),
                algorithms=self._algorithms,
                audience=self._settings.oidc_audience,
                issuer=self._settings.oidc_issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud"], "enforce_minimum_key_length": True},
            )
        except jwt.PyJWTError as error:
            raise _refused(_REASONS.get(type(error), "it is not well formed")) from None

    def _caller_in(self, claims: Mapping[str, Any]) -> Caller:
        settings = self._settings
        tenant = _claim(claims, settings.oidc_tenant_claim)
        if not isinstance(tenant, str) or _TENANT.fullmatch(tenant) is None:
            raise _refused("the claim of its tenant must be a name")
        try:
            tasks = _TASKS.validate_python(_words(_claim(claims, settings.oidc_tasks_claim)))
        except ValidationError:
            raise _refused("the claim of its tasks must list tasks") from None
        words = _words(_claim(claims, settings.oidc_scopes_claim))
        return Caller(
            name=TOKEN_PREFIX + tenant,
            scopes=frozenset(SCOPES[word] for word in words if word in SCOPES),
            tasks=TaskList(patterns=tasks),
        )


def _refused(reason: str) -> NunatakError:
    return NunatakError("invalid_token", reason=reason)


def _claim(claims: Any, name: str) -> Any:  # noqa: ANN401 - claims are any JSON
    """Return a claim by its name, or else by its path through objects."""
    if not isinstance(claims, dict):
        return None
    known = cast("Mapping[str, Any]", claims)
    first, _, rest = name.partition(".")
    return known.get(name) if name in known or not rest else _claim(known.get(first), rest)


def _words(claim: Any) -> tuple[str, ...]:  # noqa: ANN401 - as above
    if isinstance(claim, str):
        return tuple(claim.split())
    listed = cast("list[Any]", claim) if isinstance(claim, list) else ()
    return tuple(it for it in listed if isinstance(it, str))
