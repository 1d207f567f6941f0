"""`nunatak memory` and `nunatak savings`: versions in memory, and what one backbone saves."""

# ruff: noqa: PLC0415 - a command imports client and torch when it runs, not for --help

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal
from rich.table import Table

from nunatak_cli.options import BackboneOption, JsonOption, ReferenceArgument, ServerOption, group
from nunatak_cli.output import plain_table, print_outcome, print_part
from nunatak_contract.enums import HeadKind, Pooling
from nunatak_contract.errors import needs_extra
from nunatak_contract.plain_text import counted, percent

if TYPE_CHECKING:
    from nunatak_client import Client, MemoryReport


NameArgument = Annotated[
    str, typer.Argument(metavar="REF", help="name for all versions in memory, or name/version.")
]


def show(*, server: ServerOption, as_json: JsonOption = False) -> None:
    """Show the task versions in memory and the bytes of each."""
    with _client(server) as client:
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
    with _client(server) as client:
        held = client.preload(reference)
    print_part(f"{held.task}/{held.version} is in memory ({decimal(held.bytes)})")


def pin(reference: ReferenceArgument, *, server: ServerOption) -> None:
    """Load a version and keep it in memory, even if other requests need the memory."""
    with _client(server) as client:
        held = client.pin(reference)
    print_part(f"{held.task}/{held.version} is pinned ({decimal(held.bytes)})")


def unpin(reference: NameArgument, *, server: ServerOption) -> None:
    """Allow the server to evict pinned versions again."""
    with _client(server) as client:
        freed = client.unpin(reference)
    names = _names(freed.task, freed.versions)
    print_part(f"unpinned: {names}" if names else f"no version of {reference} was pinned")


def evict(reference: NameArgument, *, server: ServerOption) -> None:
    """Drop versions from memory; the server refuses while one is in use or pinned."""
    with _client(server) as client:
        dropped = client.evict(reference)
    names = _names(dropped.task, dropped.versions)
    print_part(f"evicted: {names}" if names else f"no version of {reference} was in memory")


def _client(server: str) -> "Client":
    from nunatak_client import Client

    return Client(server)


def _names(task: str, versions: tuple[int, ...]) -> str:
    return ", ".join(f"{task}/{version}" for version in versions)


def saved_line(report: "MemoryReport") -> str:
    pss = report.process.pss_bytes
    return (
        f"the server holds {counted(len(report.tasks), 'task version')}: "
        f"{decimal(report.shared_bytes)} of parameters in place of "
        f"{decimal(report.dedicated_bytes)}, {percent(abs(report.saved_share))} "
        f"{'more' if report.saved_share < 0 else 'saved'} "
        f"(formula {percent(report.saved_share_formula)})"
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


FLOAT32_BYTES = 4


def savings(
    *,
    backbone: BackboneOption = None,
    tasks: Annotated[int, typer.Option(metavar="T", min=1, help="Number of tasks.")],
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Also show the bytes of this server. Absent: the formula alone."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what T tasks save at every number of own layers, compared with T full models."""
    with needs_extra("model"):
        from nunatak_model import DEFAULT_BACKBONE
    found, lines = _by_formula(backbone or DEFAULT_BACKBONE, tasks), list[str]()
    if server is not None:
        with _client(server) as client:
            report = client.memory()
        found["server"] = report.model_dump(mode="json")
        lines.append(saved_line(report))
    print_outcome(found, _table(found), *lines, as_json=as_json)


def _by_formula(backbone: str, num_tasks: int) -> dict[str, Any]:
    """Return the bytes at every number of own layers; each task has a head of two labels."""
    from nunatak_model import model_size, parameters_saved, read_config, usual_head

    config = read_config(backbone)
    head = usual_head(
        config, kind=HeadKind.SEQUENCE_CLASSIFICATION, num_labels=2, pooling=Pooling.MEAN
    )
    size = model_size(config, head)
    dedicated, rows = num_tasks * size.total, list[dict[str, int | float]]()
    for own in range(config.num_layers + 1):
        frozen = config.num_layers - own
        saved = parameters_saved(size, num_tasks=num_tasks, num_frozen=frozen)
        rows.append(
            {
                "own_layers": own,
                "frozen_layers": frozen,
                "task_bytes": round(FLOAT32_BYTES * (own * size.per_layer + size.output)),
                "shared_bytes": round(FLOAT32_BYTES * dedicated * (1 - saved)),
                "saved_share": saved,
            }
        )
    return {
        "backbone": backbone,
        "tasks": num_tasks,
        "dedicated_bytes": round(FLOAT32_BYTES * dedicated),
        "by_own_layers": rows,
    }


def _table(found: dict[str, Any]) -> Table:
    shared, full = (f"{counted(found['tasks'], it)}, MB" for it in ("task", "full model"))
    table = plain_table("own layers", "own MB a task", shared, full, "saved")
    for row in found["by_own_layers"]:
        numbers = (row["task_bytes"], row["shared_bytes"], found["dedicated_bytes"])
        shown = (f"{number / 1e6:,.1f}" for number in numbers)
        table.add_row(str(row["own_layers"]), *shown, percent(row["saved_share"]))
    return table
