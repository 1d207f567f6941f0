"""Doubles for access: files of keys, the keys themselves, the permission of each route."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import httpx

from nunatak_contract.problems import REASONS
from nunatak_server.access.keys import KeyRecord, Scope, change_keys, digest_of, new_key
from nunatak_server.app import create_app
from nunatak_server.http.access import Access
from nunatak_server.http.middleware import StrictRoute
from nunatak_server.scheduler.turns import Quota
from nunatak_server.settings import ServerSettings

CREATED_AT = datetime(2026, 1, 1, tzinfo=UTC)


def key_record(
    key: str,
    *,
    name: str = "support",
    scopes: Sequence[Scope] = (Scope.PREDICT,),
    tasks: Sequence[str] = ("*",),
    expires_at: datetime | None = None,
) -> KeyRecord:
    return KeyRecord(
        name=name,
        sha256=digest_of(key.encode()),
        scopes=frozenset(scopes),
        tasks=tuple(tasks),
        created_at=CREATED_AT,
        expires_at=expires_at,
    )


def add_key(
    path: Path,
    name: str,
    *,
    scopes: Sequence[Scope] = tuple(Scope),
    tasks: Sequence[str] = ("*",),
    quotas: dict[Quota, int] | None = None,
) -> dict[str, str]:
    """Put a new key into a file; return the header with the key."""
    key = new_key()
    record = key_record(key, name=name, scopes=scopes, tasks=tasks)
    record = record.model_copy(update={"quotas": quotas})
    change_keys(path, lambda keys: (*keys, record))
    return {"authorization": f"Bearer {key}"}


@cache
def access_by_route() -> Mapping[tuple[str, str], Access | None]:
    """The permission that each route needs, by verb and template; None for public routes."""
    app = create_app(ServerSettings(registry="nowhere"))
    return {
        (verb, route.path_format): route.needed
        for route in app.routes
        if isinstance(route, StrictRoute)
        for verb in route.methods or ()
    }


def filled(template: str, *, task: str = "tone") -> str:
    """Return an address of a route: its template with the values of a task with one version."""
    values = {
        "{task}": task,
        "{policy}": task,
        "{version}": "1",
        "{alias}": "prod",
        "{role}": "canary",
        "{name}": "page.css",
        "{model}": "a/model",
    }
    for name, value in values.items():
        template = template.replace(name, value)
    return template


def status_of(answer: httpx.Response) -> int:
    """The status of an answer, or of the reason that Portkey's verdict `false` names."""
    if answer.request.url.path.endswith("/portkey") and answer.content:
        code = answer.json().get("data", {}).get("code")
        return answer.status_code if code is None else REASONS[code].status
    return answer.status_code
