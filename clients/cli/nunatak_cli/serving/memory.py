"""`nunatak memory`: the task versions that a running server holds in memory."""

# ruff: noqa: PLC0415 - a command imports the client when it runs, not for --help

from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal
from rich.table import Table

from nunatak_cli.options import JsonOption, ReferenceArgument, ServerOption, group
from nunatak_cli.output import console, plain_table, print_outcome

if TYPE_CHECKING:
    from nunatak_client import MemoryReport

NameArgument = Annotated[
    str, typer.Argument(metavar="REF", help="name for all versions in memory, or name/version.")
]


def show(*, server: ServerOption, as_json: JsonOption = False) -> None:
    """Show the task versions in memory and the bytes of each."""
    from nunatak_client import Client

    with Client(server) as client:
        report = client.memory()
    device, host = report.tiers.device, report.tiers.host
    budgets = (
        f"{decimal(device.bytes)} of {decimal(device.budget_bytes)} on the device, "
        f"{decimal(device.pinned_bytes)} of them pinned; {decimal(host.bytes)} of "
        f"{decimal(host.budget_bytes)} in host memory"
    )
    document, lines = report.model_dump(mode="json"), (budgets, saved_line(report))
    print_outcome(document, _report_table(report), *lines, as_json=as_json)


def preload(reference: ReferenceArgument, *, server: ServerOption) -> None:
    """Load a version, so that its first request does not wait."""
    from nunatak_client import Client

    with Client(server) as client:
        held = client.preload(reference)
    console().print(f"{held.task}/{held.version} is in memory ({decimal(held.bytes)})")


def pin(reference: ReferenceArgument, *, server: ServerOption) -> None:
    """Load a version and keep it in memory, even if other requests need the memory."""
    from nunatak_client import Client

    with Client(server) as client:
        held = client.pin(reference)
    console().print(f"{held.task}/{held.version} is pinned ({decimal(held.bytes)})")


def unpin(reference: NameArgument, *, server: ServerOption) -> None:
    """Allow the server to evict pinned versions again."""
    from nunatak_client import Client

    with Client(server) as client:
        freed = client.unpin(reference)
    nothing = f"no version of {reference} was pinned"
    console().print(_changed("unpinned", freed.task, freed.versions) or nothing)


def evict(reference: NameArgument, *, server: ServerOption) -> None:
    """Drop versions from memory; the server refuses while one is in use or pinned."""
    from nunatak_client import Client

    with Client(server) as client:
        dropped = client.evict(reference)
    nothing = f"no version of {reference} was in memory"
    console().print(_changed("evicted", dropped.task, dropped.versions) or nothing)


def _changed(what: str, task: str, versions: tuple[int, ...]) -> str:
    """Return the line about changed versions; an empty one if there are none."""
    names = ", ".join(f"{task}/{version}" for version in versions)
    return names and f"{what}: {names}"


def saved_line(report: "MemoryReport") -> str:
    """Return what the versions in memory save, compared with one full model for each."""
    pss = report.process.pss_bytes
    return (
        f"the server holds {len(report.tasks)} task versions: {decimal(report.shared_bytes)} of "
        f"parameters in place of {decimal(report.dedicated_bytes)}, {report.saved_share:.1%} saved "
        f"(formula {report.saved_share_formula:.1%})"
        + ("" if pss is None else f"; the whole process has {decimal(pss)} (PSS)")
    )


def _report_table(report: "MemoryReport") -> Table:
    table = plain_table("version", "method", "size", "pinned")
    for task in report.tasks:
        pinned = "yes" if task.pinned else ""
        table.add_row(f"{task.task}/{task.version}", task.method, decimal(task.bytes), pinned)
    return table


memory_app = group(
    "memory",
    "Show and choose the task versions in a server's memory.",
    {
        "show": (show, "nunatak memory show --server http://127.0.0.1:8080"),
        "preload": (preload, "nunatak memory preload tone@prod --server http://127.0.0.1:8080"),
        "pin": (pin, "nunatak memory pin tone@prod --server http://127.0.0.1:8080"),
        "unpin": (unpin, "nunatak memory unpin tone --server http://127.0.0.1:8080"),
        "evict": (evict, "nunatak memory evict tone/2 --server http://127.0.0.1:8080"),
    },
    shown="pin",
)
