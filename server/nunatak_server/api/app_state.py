"""The state of an application: what every request to it is answered with."""

from dataclasses import dataclass, field

from starlette.types import Scope

from nunatak_server.access.doors import Door
from nunatak_server.process.settings import ServerSettings
from nunatak_server.runtime import Runtime


@dataclass(slots=True, kw_only=True)
class AppState:
    """Lies at `app.state`, with attributes that are its own and known, unlike the framework's."""

    settings: ServerSettings
    door: Door
    runtime: Runtime = field(init=False)
    """There once the application has started, before which it is given no requests."""


def state_of(scope: Scope) -> AppState:
    """Return the state of the application that answers a request."""
    state: AppState = scope["app"].state
    return state
