"""Access: which route needs which scope, and the check that every request passes first.

A route that is not in the table is for operators of the whole server alone. What counts is the
template of the route that was found, never the address as it was sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from starlette.types import Scope as RequestScope

from nunatak_server.access.keys import Caller, Scope
from nunatak_server.errors import CrossSiteError, InsufficientScopeError, UnauthenticatedError
from nunatak_server.http.state import state_of

_CALLER_KEY: Final = "nunatak_caller"
_SCHEME: Final = b"bearer"
OWN_SITES: Final = frozenset({b"same-origin", b"none"})
"""What browsers say of a request by a page of this server, or by the user alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a caller must have; `spans_tasks` where the answer speaks of every task."""

    scope: Scope
    spans_tasks: bool = False


PUBLIC: Final = None
PREDICT: Final = Access(scope=Scope.PREDICT)
READ: Final = Access(scope=Scope.READ)
READ_ALL: Final = Access(scope=Scope.READ, spans_tasks=True)
ADMIN: Final = Access(scope=Scope.ADMIN)
ADMIN_ALL: Final = Access(scope=Scope.ADMIN, spans_tasks=True)

ACCESS: Final[Mapping[tuple[str, str], Access | None]] = {
    ("GET", "/livez"): PUBLIC,
    ("GET", "/readyz"): PUBLIC,
    ("GET", "/health"): PUBLIC,
    # Pages hold nothing but themselves: what they show is asked for with the caller's key.
    ("GET", "/"): PUBLIC,
    ("GET", "/docs"): PUBLIC,
    ("GET", "/page/{name}"): PUBLIC,
    ("POST", "/v1/predict"): PREDICT,
    ("POST", "/v1/tasks/{task}/predict"): PREDICT,
    ("POST", "/v1/tasks/{task}/{version}/predict"): PREDICT,
    ("GET", "/v1/tasks"): READ,
    ("GET", "/v1/tasks/{task}"): READ,
    ("GET", "/v1/tasks/{task}/shadow"): READ,
    ("GET", "/info"): READ,
    ("GET", "/openapi.json"): READ,
    ("GET", "/metrics"): READ_ALL,
    ("GET", "/v1/memory"): READ_ALL,
    ("PUT", "/v1/tasks/{task}/aliases/{alias}"): ADMIN,
    ("POST", "/v1/tasks/{task}/aliases/{alias}/rollback"): ADMIN,
    ("PUT", "/v1/tasks/{task}/aliases/{alias}/{role}"): ADMIN,
    ("POST", "/v1/tasks/{task}/aliases/{alias}/{role}/end"): ADMIN,
    ("POST", "/v1/tasks/{task}/preload"): ADMIN,
    ("POST", "/v1/tasks/{task}/pin"): ADMIN,
    ("POST", "/v1/tasks/{task}/unpin"): ADMIN,
    ("POST", "/v1/tasks/{task}/evict"): ADMIN,
    ("POST", "/tei/tasks/{task}/predict"): PREDICT,
    ("POST", "/tei/tasks/{task}/{version}/predict"): PREDICT,
    ("POST", "/tei/tasks/{task}/rerank"): PREDICT,
    ("POST", "/tei/tasks/{task}/{version}/rerank"): PREDICT,
    ("GET", "/tei/tasks/{task}/info"): READ,
    ("GET", "/tei/tasks/{task}/{version}/info"): READ,
    ("GET", "/tei/tasks/{task}/health"): READ,
    ("GET", "/tei/tasks/{task}/{version}/health"): READ,
    ("POST", "/tei/backbone"): PREDICT,
    ("POST", "/tei/backbone/embed"): PREDICT,
    ("GET", "/tei/backbone/info"): READ,
    ("GET", "/tei/backbone/health"): PUBLIC,
    ("POST", "/v1/embeddings"): PREDICT,
    ("GET", "/v1/models"): READ,
    ("GET", "/v1/models/{model}"): READ,
    ("GET", "/v2"): READ,
    ("GET", "/v2/health/live"): PUBLIC,
    ("GET", "/v2/health/ready"): PUBLIC,
    ("GET", "/v2/models/{task}"): READ,
    ("GET", "/v2/models/{task}/versions/{version}"): READ,
    ("GET", "/v2/models/{task}/ready"): READ,
    ("GET", "/v2/models/{task}/versions/{version}/ready"): READ,
    ("POST", "/v2/models/{task}/infer"): PREDICT,
    ("POST", "/v2/models/{task}/versions/{version}/infer"): PREDICT,
}


def access_to(methods: set[str], template: str) -> Access | None:
    """Return what a route needs; every route has one method."""
    (method,) = methods
    return ACCESS.get((method, template), ADMIN_ALL)


def admit(scope: RequestScope, needed: Access | None) -> None:
    """Find out who asks, and refuse those who may not.

    Raises:
        UnauthenticatedError: no valid key was sent.
        InsufficientScopeError: the key is not for this route.
        CrossSiteError: a browser sends it, for a page that is not ours.
    """
    if needed is None:
        return
    headers = scope["headers"]
    if scope["method"] != "GET" and is_of_another_site(headers):
        raise CrossSiteError
    presented = presented_key(headers)
    caller = state_of(scope).authenticator.identify(presented)
    if caller is None:
        raise UnauthenticatedError(was_presented=presented is not None)
    if needed.scope not in caller.scopes or (needed.spans_tasks and not caller.tasks.has_all):
        raise InsufficientScopeError(needed.scope, spans_tasks=needed.spans_tasks)
    scope[_CALLER_KEY] = caller


def caller_of(scope: RequestScope) -> Caller:
    """Return who sent a request that was admitted; public routes have no caller."""
    caller: Caller = scope[_CALLER_KEY]
    return caller


def find_caller(scope: RequestScope) -> Caller | None:
    """Return who sent a request, if it was admitted and its route is not public."""
    return scope.get(_CALLER_KEY)


def is_of_another_site(headers: list[tuple[bytes, bytes]]) -> bool:
    """Tell whether a browser sends a request for a page that did not come from here.

    Browsers say whose page it is, but not to addresses without TLS; there the page's origin has to
    be that of the request. What is no browser sends neither.
    """
    sent = dict(headers)
    site = sent.get(b"sec-fetch-site")
    if site is not None:
        return site not in OWN_SITES
    origin = sent.get(b"origin")
    return origin is not None and origin.rpartition(b"//")[2] != sent.get(b"host")


def presented_key(headers: list[tuple[bytes, bytes]]) -> bytes | None:
    """Return the key that was sent, if exactly one was: two would be read differently elsewhere."""
    sent = [value for name, value in headers if name == b"authorization"]
    if len(sent) != 1:
        return None
    scheme, _, key = sent[0].strip().partition(b" ")
    return key.strip() if scheme.lower() == _SCHEME else None
