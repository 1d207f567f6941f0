"""The state of an application, the ids of requests, and the check that every request passes first.

A route names its scope among its dependencies: `dependencies=[needs(Scope.PREDICT)]`. A route
without a scope is only for operators of the whole server. The matched route decides, and never the
address of the request.
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fastapi import Depends, Security
from fastapi.openapi.models import HTTPBearer
from fastapi.params import Depends as Dependency
from fastapi.security.base import SecurityBase
from starlette.types import Scope as RequestScope

from nunatak_contract.errors import NunatakError
from nunatak_contract.wire import RELEASE_HEADER, REPLICA_HEADER, REQUEST_ID_HEADER
from nunatak_server import VERSION
from nunatak_server.access.audit import AuditLog
from nunatak_server.access.keys import ANYONE, TOKEN_PREFIX, Authenticator, Caller, Scope
from nunatak_server.errors import UnknownSignerError
from nunatak_server.runtime import Runtime
from nunatak_server.scheduler.admission import State
from nunatak_server.settings import ServerSettings


@dataclass(slots=True, kw_only=True)
class AppState:
    """The value of `app.state`. Unlike the framework's state, it has typed attributes."""

    settings: ServerSettings
    authenticator: Authenticator
    audit: AuditLog | None = None
    origins: frozenset[bytes] = field(init=False)
    """The other sites whose pages may call this server."""
    runtime: Runtime = field(init=False)
    """Set when the application has started; requests arrive only afterwards."""

    def __post_init__(self) -> None:
        self.origins = frozenset(it.encode() for it in self.settings.allowed_origins())

    def is_leaving(self) -> bool:
        return self.runtime.readiness.state in (State.LEAVING, State.DRAINING)


def state_of(scope: RequestScope) -> AppState:
    state: AppState = scope["app"].state
    return state


_HEADER: Final = REQUEST_ID_HEADER.encode()
_REPLICA_HEADER: Final = REPLICA_HEADER.encode()
_RELEASE: Final = (RELEASE_HEADER.encode(), VERSION.encode())
_STATE_KEY: Final = "nunatak_request_id"
_HEADERS_KEY: Final = "nunatak_headers"
_ID_BITS: Final = 64
_SANE_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


def request_id_of(scope: RequestScope) -> str | None:
    return scope.get(_STATE_KEY)


def headers_of(scope: RequestScope) -> dict[bytes, bytes]:
    """Return the first value of each header; names are in lower case."""
    sent: dict[bytes, bytes] | None = scope.get(_HEADERS_KEY)
    if sent is None:
        sent = scope[_HEADERS_KEY] = dict(reversed(scope["headers"]))
    return sent


def give_id(scope: RequestScope) -> list[tuple[bytes, bytes]]:
    """Give a request an id, the caller's own if it is valid.

    Returns the headers with the id of the request, the id of this replica and the release.
    """
    # An id is no secret, and a system call for each one would take longer. This generator, of the
    # module itself, gets a new seed in each forked process.
    sent = headers_of(scope).get(_HEADER)
    is_sane = sent is not None and _SANE_ID.fullmatch(sent)
    request_id = sent.decode() if sent and is_sane else f"{random.getrandbits(_ID_BITS):016x}"
    scope[_STATE_KEY] = request_id
    replica_id = state_of(scope).runtime.replica_id
    return [(_HEADER, request_id.encode()), (_REPLICA_HEADER, replica_id.encode()), _RELEASE]


_CALLER_KEY: Final = "nunatak_caller"
_SCHEME: Final = b"bearer"
OWN_SITES: Final = frozenset({b"same-origin", b"none"})
"""The values of `Sec-Fetch-Site` for requests by a page of this server, or by the user."""


@dataclass(frozen=True, kw_only=True)
class Access(SecurityBase):
    """The permission that a route needs; `spans_tasks` if the answer covers every task.

    The framework writes the permission into the schema. A `StrictRoute` itself admits the caller,
    because the framework would read the body first.
    """

    model = HTTPBearer()
    scheme_name = "key"

    scope: Scope
    spans_tasks: bool = False

    def __call__(self) -> None:
        """Raise an error: only a route that admits nobody lets the framework call this."""
        raise TypeError("a route that needs a permission must be a StrictRoute")


def anyone() -> None:
    """Admit every caller."""


PREDICT: Final = Access(scope=Scope.PREDICT)
OPERATORS: Final = Access(scope=Scope.ADMIN, spans_tasks=True)
"""The default permission of a route."""
PUBLIC: Final = Depends(anyone)
"""The dependency of a route without a key."""


def needs(scope: Scope, *, spans_tasks: bool = False) -> Dependency:
    return Security(Access(scope=scope, spans_tasks=spans_tasks), scopes=[scope])


def access_of(dependencies: Sequence[Dependency]) -> Access | None:
    """Return the permission that the dependencies of a route name; None for a public route.

    Raises:
        TypeError: the dependencies name several scopes, or what nothing would call.
    """
    match [it.dependency for it in dependencies]:
        case []:
            return OPERATORS
        case [Access() as access]:
            return access
        case [named] if named is anyone:
            return None
        case several:
            raise TypeError(f"expected one scope for a route, got {several}")


async def let_in(scope: RequestScope, needed: Access | None) -> None:
    """Do what `admit` does, with the newest keys of the issuer of a token."""
    try:
        admit(scope, needed)
    except UnknownSignerError:
        await state_of(scope).authenticator.look_again()
        admit(scope, needed)


def admit(scope: RequestScope, needed: Access | None) -> None:
    """Find the caller, and refuse a caller without permission.

    Raises:
        NunatakError: `unauthenticated`, no valid key was sent.
        NunatakError: `invalid_token`, the token of an issuer is not valid.
        UnknownSignerError: `invalid_token` or `issuer_unavailable`, no known key has signed it.
        NunatakError: `insufficient_scope`, the key does not allow this route.
        NunatakError: `cross_site`, a browser sends the request for a page of another site that
            the settings do not allow.
    """
    if needed is None:
        return
    is_foreign = scope["method"] != "GET" and is_of_another_site(headers_of(scope))
    if is_foreign and allowed_origin(scope) is None:
        raise NunatakError("cross_site")
    presented = presented_key(scope["headers"])
    caller = state_of(scope).authenticator.identify(presented)
    if caller is None:
        raise NunatakError("unauthenticated", was_presented=presented is not None)
    scope[_CALLER_KEY] = caller
    if needed.scope not in caller.scopes or (needed.spans_tasks and not caller.tasks.has_all):
        extent = " and with all tasks" if needed.spans_tasks else ""
        raise NunatakError("insufficient_scope", scope=needed.scope, extent=extent)


def caller_of(scope: RequestScope) -> Caller:
    """Return the caller of an admitted request; public routes have no caller."""
    caller: Caller = scope[_CALLER_KEY]
    return caller


def actor_of(scope: RequestScope) -> str:
    caller = caller_of(scope)
    # A key may have the name of the caller without keys.
    has_key = caller is not ANYONE and not caller.name.startswith(TOKEN_PREFIX)
    return f"key {caller.name}" if has_key else caller.name


def find_caller(scope: RequestScope) -> Caller | None:
    """Return the caller, if a valid key or token was sent and the route is not public."""
    return scope.get(_CALLER_KEY)


def is_of_another_site(sent: Mapping[bytes, bytes]) -> bool:
    """Return whether a browser sends a request for a page of another site.

    Browsers name the site in `Sec-Fetch-Site`, but only with TLS. Without TLS, `Origin` must equal
    the origin of the request. Programs send neither header.
    """
    site = sent.get(b"sec-fetch-site")
    if site is not None:
        return site not in OWN_SITES
    origin = sent.get(b"origin")
    return origin is not None and origin.rpartition(b"//")[2] != sent.get(b"host")


def allowed_origin(scope: RequestScope) -> bytes | None:
    """Return the origin of a page of another site that the settings allow; None for others."""
    sent = [value for name, value in scope["headers"] if name == b"origin"]
    return sent[0] if len(sent) == 1 and sent[0] in state_of(scope).origins else None


def sharing_headers(scope: RequestScope) -> dict[str, str]:
    """Return the headers that let an allowed page read an answer.

    Only for answers that do not pass the framework's layer for such pages.
    """
    origin = allowed_origin(scope)
    if origin is None:
        return {}
    return {
        "access-control-allow-origin": origin.decode(),
        "access-control-expose-headers": "*",
        "vary": "Origin",
    }


def presented_key(headers: list[tuple[bytes, bytes]]) -> bytes | None:
    """Return the key, if exactly one was sent. Proxies might read two keys differently."""
    sent = [value for name, value in headers if name == b"authorization"]
    if len(sent) != 1:
        return None
    scheme, _, key = sent[0].strip().partition(b" ")
    return key.strip() if scheme.lower() == _SCHEME else None
