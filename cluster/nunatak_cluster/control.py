"""Control: start, show and stop the applications of Nunatak on a cluster."""

# Ray types some of its functions partly.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ray import serve
from ray.serve.config import HTTPOptions
from ray.serve.context import _get_global_client  # pyright: ignore[reportPrivateUsage] - no other way

from nunatak_cluster.serving import BackboneSettings, build
from nunatak_contract.errors import NunatakError

PREFIX: Final = "nunatak-"
"""Of the names of our applications; other applications of the cluster stay alone."""
RUNNING: Final = "RUNNING"
"""The status of an application whose replicas are all ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationPlace:
    """An application: its name on the cluster, and the prefix of its paths."""

    name: str
    route: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationState:
    """The state of an application."""

    name: str
    status: str
    message: str
    replicas: Mapping[str, int]


def places_of(backbones: Sequence[str]) -> dict[str, ApplicationPlace]:
    # Of a folder or a hub id the last part names the path and, to Ray, the application.
    last = [it.rstrip("/").rpartition("/")[2].lower() for it in backbones]
    words = ["".join(it if it.isalnum() and it.isascii() else "-" for it in word) for word in last]
    names = [word.strip("-") for word in words]
    if len(set(names)) != len(names):
        problem = f"expected backbones with different names, got {', '.join(names)}"
        raise NunatakError("invalid_option", problem=problem)
    is_alone = len(names) == 1
    return {
        backbone: ApplicationPlace(name=f"{PREFIX}{name}", route="/" if is_alone else f"/{name}")
        for backbone, name in zip(backbones, names, strict=True)
    }


def up(
    applications: Sequence[tuple[ApplicationPlace, BackboneSettings]], *, host: str, port: int
) -> None:
    """Start applications, or replace those that run, and return when they are ready.

    Replicas are replaced a few at a time. The proxy of a Serve that runs already keeps its address.
    """
    serve.start(http_options=HTTPOptions(host=host, port=port))
    _check_address(host, port)
    for place, settings in applications:
        try:
            serve.run(build(settings), name=place.name, route_prefix=place.route)
        except RuntimeError as error:
            reason = " ".join(it.message for it in status() if it.name == place.name)
            problem = f"{place.name} does not start: {reason or error}"
            raise NunatakError("ray_failed", problem=problem) from error


def _check_address(host: str, port: int) -> None:
    """Refuse another address than Ray's: the host decides whether a server needs keys."""
    client = _get_global_client()
    found = None if client is None else client.http_config
    if found is None or (found.host, found.port) != (host, port):
        problem = (
            f"Ray Serve listens at {found and found.host}:{found and found.port} already, and the "
            f"options ask for {host}:{port}; name that address with --host and --port, or end Ray "
            "Serve first (`serve shutdown`)"
        )
        raise NunatakError("invalid_option", problem=problem)


def status() -> list[ApplicationState]:
    states = list[ApplicationState]()
    for name, found in sorted(serve.status().applications.items()):
        deployments = list(found.deployments.values())
        messages = (found.message, *(it.message for it in deployments))
        replicas = {
            str(state): count for it in deployments for state, count in it.replica_states.items()
        }
        if name.startswith(PREFIX):
            states.append(
                ApplicationState(
                    name=name,
                    status=str(found.status.value),
                    message="; ".join(filter(None, messages)),
                    replicas=replicas,
                )
            )
    return states


def down() -> list[str]:
    """Stop our applications and return their names; an otherwise idle Ray Serve ends as well."""
    names = [it.name for it in status()]
    for name in names:
        serve.delete(name)
    if not serve.status().applications:
        serve.shutdown()
    return names
