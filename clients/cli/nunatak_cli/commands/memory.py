"""`nunatak memory`: which task versions a running server holds, and which it is to keep."""

# ruff: noqa: PLC0415 - heavy imports run when their command does, not for --help

from typing import Annotated

import typer

from nunatak_cli.options import JsonOption, example
from nunatak_cli.output import console, print_json

ServerOption = Annotated[
    str, typer.Option("--server", metavar="URL", help="Address of the server.")
]
ReferenceArgument = Annotated[
    str, typer.Argument(metavar="REF", help="Task: name, name@alias or name/version.")
]
NameArgument = Annotated[
    str, typer.Argument(metavar="REF", help="name for all versions in memory, or name/version.")
]

EXAMPLES = {
    "show": "nunatak memory show --server http://127.0.0.1:8080",
    "preload": "nunatak memory preload tone@prod --server http://127.0.0.1:8080",
    "pin": "nunatak memory pin tone@prod --server http://127.0.0.1:8080",
    "unpin": "nunatak memory unpin tone --server http://127.0.0.1:8080",
    "evict": "nunatak memory evict tone/2 --server http://127.0.0.1:8080",
}


def memory_app() -> typer.Typer:
    """Put the commands of the group together."""
    app = typer.Typer(
        name="memory",
        help="See and choose which task versions a server holds.",
        no_args_is_help=True,
        epilog=example(EXAMPLES["pin"]),
    )
    commands = {"show": show, "preload": preload, "pin": pin, "unpin": unpin, "evict": evict}
    for name, command in commands.items():
        app.command(name, epilog=example(EXAMPLES[name]))(command)
    return app


def show(*, server: ServerOption, as_json: JsonOption = False) -> None:
    """Show what is in memory, and of how many bytes."""
    from nunatak_cli.views.memory import memory_table, tiers_line
    from nunatak_client import Client

    with Client(server) as client:
        report = client.memory()
    if as_json:
        print_json(report.model_dump(mode="json"))
        return
    console().print(memory_table(report))
    console().print(tiers_line(report))


def preload(reference: ReferenceArgument, *, server: ServerOption) -> None:
    """Load a version, so that the first request for it need not wait."""
    from nunatak_client import Client

    with Client(server) as client:
        held = client.preload(reference)
    console().print(f"{held.task}/{held.version} is in memory ({held.bytes} bytes)")


def pin(reference: ReferenceArgument, *, server: ServerOption) -> None:
    """Load a version and keep it in memory, whatever else is asked."""
    from nunatak_client import Client

    with Client(server) as client:
        held = client.pin(reference)
    console().print(f"{held.task}/{held.version} is pinned ({held.bytes} bytes)")


def unpin(reference: NameArgument, *, server: ServerOption) -> None:
    """Let versions be evicted again."""
    from nunatak_client import Client

    with Client(server) as client:
        freed = client.unpin(reference)
    console().print(f"unpinned: {_names(freed.task, freed.versions)}")


def evict(reference: NameArgument, *, server: ServerOption) -> None:
    """Drop versions from memory; refused while one is in use or pinned."""
    from nunatak_client import Client

    with Client(server) as client:
        dropped = client.evict(reference)
    console().print(f"evicted: {_names(dropped.task, dropped.versions)}")


def _names(task: str, versions: tuple[int, ...]) -> str:
    return ", ".join(f"{task}/{version}" for version in versions) or "none"
