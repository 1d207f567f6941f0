"""`nunatak cluster`: the server on Ray Serve."""

# ruff: noqa: PLC0415 - a command imports the server and Ray when it runs, not for --help

from typing import Annotated

import typer
from pydantic import JsonValue

from nunatak_cli.options import JsonOption, RegistryOption, assignments, group
from nunatak_cli.output import plain_table, print_outcome, print_part
from nunatak_contract.errors import needs_extra
from nunatak_contract.plain_text import visible

UP_EXAMPLE = (
    "nunatak cluster up --registry 'postgresql+psycopg://db/nunatak?blobs=s3://bucket/tasks' "
    "--replicas 1:4"
)
ClusterOption = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="ray[://HOST:PORT]",
        help="The cluster of this machine or of RAY_ADDRESS, or the one of this client server.",
    ),
]


def up(  # noqa: PLR0913 - one parameter per option is how typer works
    *,
    backbone: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Backbone, with replicas of its own (minilm). Repeatable."
        ),
    ] = None,
    replicas: Annotated[
        str,
        typer.Option(
            metavar="N[:M]", help="Replicas of each backbone; with M, as many as the load needs."
        ),
    ] = "1",
    queued_seconds: Annotated[
        float,
        typer.Option(
            min=0.01,
            metavar="S",
            help="Seconds of work in the queue of a replica above which there are more replicas.",
        ),
    ] = 0.5,
    cpus: Annotated[
        float, typer.Option(min=0.01, metavar="N", help="Cores that Ray reserves for a replica.")
    ] = 1.0,
    gpus: Annotated[
        float, typer.Option(min=0, metavar="N", help="GPUs of a replica, or a fraction of one.")
    ] = 0.0,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Address at which Ray Serve listens, on each node.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=1, max=65_535, metavar="N", help="Port of Ray Serve.")
    ] = 8080,
    registry: RegistryOption = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of the replicas that `nunatak serve --show-config` lists. Repeatable.",
        ),
    ] = None,
    on: ClusterOption = "ray",
) -> None:
    """Start the replicas, or replace those that run, and return when they are ready."""
    with needs_extra("ray"):
        from nunatak_cluster.serving import BackboneSettings, places_of
        from nunatak_cluster.serving import up as start
        from nunatak_cluster.session import joined, on_all_nodes
    from nunatak_server.access.keys import check_exposure
    from nunatak_server.configuration import configure

    places = places_of(backbone or [configure({}).settings.backbone])
    least, most = _bounds(replicas)
    common: dict[str, JsonValue] = {**dict(assignments("--set", settings)), "host": host}
    if registry is not None:
        common["registry"] = on_all_nodes(registry)
    applications = [
        (
            place,
            BackboneSettings(
                settings={**common, "backbone": name},
                min_replicas=least,
                max_replicas=most,
                queued_seconds=queued_seconds,
                num_cpus=cpus,
                num_gpus=gpus,
            ),
        )
        for name, place in places.items()
    ]
    for _, each in applications:
        check_exposure(configure(each.settings).settings)
    with joined(on):
        start(applications, host=host, port=port)
    for name, place in places.items():
        print_part(visible(f"{name}: ready at http://{host}:{port}{place.route}"))


def status(*, on: ClusterOption = "ray", as_json: JsonOption = False) -> None:
    """Show the replicas of each backbone. The exit status is 1 unless all of them run."""
    with needs_extra("ray"):
        from nunatak_cluster.serving import RUNNING
        from nunatak_cluster.serving import status as states_of
        from nunatak_cluster.session import joined
    with joined(on):
        found = states_of()
    table = plain_table("application", "status", "replicas", "message")
    for it in found:
        counts = ", ".join(f"{count} {state.lower()}" for state, count in it.replicas.items())
        table.add_row(it.name, it.status.lower(), counts, visible(it.message))
    empty = "no application runs on this cluster"
    print_outcome({"applications": list(found)}, table, as_json=as_json, empty=empty)
    if not found or any(it.status != RUNNING for it in found):
        raise typer.Exit(1)


def down(*, on: ClusterOption = "ray") -> None:
    """Stop all replicas after their last answers."""
    with needs_extra("ray"):
        from nunatak_cluster.serving import down as stop
        from nunatak_cluster.session import joined
    with joined(on):
        names = stop()
    print_part(f"stopped: {', '.join(names)}" if names else "there was nothing to stop")


def _bounds(replicas: str) -> tuple[int, int]:
    least, _, most = replicas.partition(":")
    try:
        bounds = int(least), int(most or least)
    except ValueError:
        bounds = 0, 0
    if not 1 <= bounds[0] <= bounds[1]:
        raise typer.BadParameter(f"--replicas: expected 2 or 2:8, got {replicas!r}")
    return bounds


cluster_app = group(
    "cluster",
    "Serve on a Ray cluster.",
    {
        "up": (up, UP_EXAMPLE),
        "status": (status, "nunatak cluster status"),
        "down": (down, "nunatak cluster down"),
    },
)
