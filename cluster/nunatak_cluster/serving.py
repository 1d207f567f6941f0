"""Serving on Ray Serve: one application for each backbone, with the server's own app in a replica.

Admission, batching and the choice of task versions stay the server's. Ray Serve only places the
replicas, routes requests to them, and replaces those that are not ready.

`up`, `status` and `down` start, show and stop the applications.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from prometheus_client import disable_created_metrics
from pydantic import BaseModel, Field, JsonValue
from ray import serve
from ray.serve import Application as RayApplication
from ray.serve.config import HTTPOptions
from ray.serve.context import _get_global_client

from nunatak_cluster import scaling
from nunatak_cluster.scaling import QUEUED_SECONDS, QueuedSeconds
from nunatak_contract.errors import NunatakError, invalid_option
from nunatak_registry import Registry
from nunatak_server.app import Application, create_app
from nunatak_server.configuration import configure
from nunatak_server.engine.backbones import load_on_own_thread
from nunatak_server.processes.serving import find_tracing, tune_interpreter
from nunatak_server.runtime import Runtime
from nunatak_server.settings import ServerSettings
from nunatak_server.telemetry.logs import leave_out_places, log_everything

MAX_ONGOING: Final = 100_000
"""Requests that Ray gives to a replica at once. The replica's own admission refuses far earlier,
with 429; Ray itself would let requests wait without a bound."""
HEALTH_PERIOD_S: Final = 5.0
LAST_WORDS_S: Final = 5.0
"""Extra time of a replica after its requests, to close its parts."""
ANY_HOST: Final = "0.0.0.0"  # noqa: S104 - the address that Ray listens at, without other settings
ANNOUNCED: Final = "ray:"


class BackboneSettings(BaseModel, frozen=True, extra="forbid"):
    """The replicas of one backbone; the `args` of an application in a file of Ray Serve."""

    settings: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    """Settings of the server, by name. For the others, each node's environment counts."""
    min_replicas: Annotated[int, Field(ge=1)] = 1
    max_replicas: Annotated[int, Field(ge=1)] = 1
    queued_seconds: Annotated[float, Field(gt=0)] = 0.5
    """Seconds of work in the queue of a replica, above which there are more replicas."""
    num_cpus: Annotated[float, Field(gt=0)] = 1.0
    num_gpus: Annotated[float, Field(ge=0)] = 0.0
    """GPUs of a replica, or a fraction of one. Ray does not divide the memory of the GPU; set
    `task_memory_bytes`."""


class Replica:
    """One server in a replica of Ray Serve. Ray calls the methods on the server's event loop."""

    def __init__(self, given: Mapping[str, JsonValue]) -> None:
        self._settings = replica_settings(given)
        self._app: Application | None = None

    def __serve_build_asgi_app__(self) -> Application:
        """Load the backbone, and return the application. Ray runs its lifespan."""
        settings = self._settings
        log_everything(settings.log_format)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        # The server would make a new registry, and each node has its own disk.
        Registry.open(settings.registry, create=False).close()
        disable_created_metrics()
        leave_out_places()
        backbones = load_on_own_thread(settings)
        settings = settings.for_device(backbones.default.device.type)
        settings.batch_limits(longest_row_tokens=backbones.max_tokens)
        tune_interpreter(max_requests=settings.max_queued_requests)
        self._app = create_app(settings, backbones=backbones, tracing=find_tracing())
        return self._app

    async def check_health(self) -> None:
        """Return if this replica is ready. Ray replaces a replica that raises three times."""
        self._runtime.readiness.check_ready()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return {QUEUED_SECONDS: self._runtime.admission.drain_s()}

    @property
    def _runtime(self) -> Runtime:
        # Ray asks only after the start of the application.
        app = self._app
        assert app is not None  # noqa: S101 - see above
        return app.state.runtime


def replica_settings(given: Mapping[str, JsonValue]) -> ServerSettings:
    """Return the settings of the replica in which this code runs.

    The host counts for the check that a server without keys is not open to other machines. It is
    the address of Ray's proxy, which listens for all machines unless `given` has another one.
    """
    own = {
        "host": ANY_HOST,
        "replica_id": serve.get_replica_context().replica_id.unique_id,
        "replica_address": f"{ANNOUNCED}{socket.gethostname()}",
        # Each application has one backbone, whatever the environment of its node names.
        "other_backbones": "",
    }
    return configure({**own, **given}).settings


def build(args: BackboneSettings) -> RayApplication:
    """Return the application of one backbone; the `import_path` in a file of Ray Serve."""
    grace_s = configure(args.settings).settings.grace_s
    options: dict[str, Any] = {
        "max_ongoing_requests": MAX_ONGOING,
        "health_check_period_s": HEALTH_PERIOD_S,
        "graceful_shutdown_timeout_s": grace_s + LAST_WORDS_S,
        "ray_actor_options": {"num_cpus": args.num_cpus, "num_gpus": args.num_gpus},
    }
    if args.max_replicas > args.min_replicas:
        policy = f"{scaling.__name__}:{QueuedSeconds.__name__}"
        options["autoscaling_config"] = {
            "min_replicas": args.min_replicas,
            "max_replicas": args.max_replicas,
            "policy": {
                "policy_function": policy,
                "policy_kwargs": {"target_s": args.queued_seconds},
            },
        }
    else:
        options["num_replicas"] = args.min_replicas
    ingress: Any = serve.ingress()(Replica)
    deployment: Any = serve.deployment(ingress)
    return deployment.options(name="backbone", **options).bind(args.settings)


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
        raise invalid_option(f"expected backbones with different names, got {', '.join(names)}")
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
        raise invalid_option(problem)


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
