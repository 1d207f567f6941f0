"""The state of an application, and the ids in the headers of an answer."""

import random
import re
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final

from starlette.types import Scope

from nunatak_contract.wire import RELEASE_HEADER, REPLICA_HEADER, REQUEST_ID_HEADER
from nunatak_server.access.audit import AuditLog
from nunatak_server.access.authenticators import Authenticator
from nunatak_server.runtime import Runtime
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


def state_of(scope: Scope) -> AppState:
    state: AppState = scope["app"].state
    return state


_HEADER: Final = REQUEST_ID_HEADER.encode()
_REPLICA_HEADER: Final = REPLICA_HEADER.encode()
_RELEASE: Final = (RELEASE_HEADER.encode(), version("nunatak").encode())
_STATE_KEY: Final = "nunatak_request_id"
_ID_BITS: Final = 64
_SANE_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


def request_id_of(scope: Scope) -> str | None:
    return scope.get(_STATE_KEY)


def header_of(scope: Scope, name: bytes) -> bytes | None:
    """Return the first value of a header; names are in lower case."""
    for other, value in scope["headers"]:
        if other == name:
            return value
    return None


def give_id(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Give a request an id, the caller's own if it is valid.

    Returns the headers with the id of the request, the id of this replica and the release.
    """
    # An id is no secret, and a system call for each one would take longer. This generator, of the
    # module itself, gets a new seed in each forked process.
    request_id = _sent_id(scope) or f"{random.getrandbits(_ID_BITS):016x}"
    scope[_STATE_KEY] = request_id
    replica_id = state_of(scope).runtime.replica_id
    return [(_HEADER, request_id.encode()), (_REPLICA_HEADER, replica_id.encode()), _RELEASE]


def _sent_id(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == _HEADER and _SANE_ID.fullmatch(value):
            return value.decode()
    return None
