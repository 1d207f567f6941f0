"""`nunatak savings`: the memory that tasks on one backbone save, by the papers' formula."""

# ruff: noqa: PLC0415 - a command imports torch when it runs, not for --help

from typing import Annotated, Any

import typer
from rich.table import Table

from nunatak_cli.options import BackboneOption, JsonOption
from nunatak_cli.output import plain_table, print_outcome
from nunatak_cli.serving.memory import saved_line
from nunatak_contract.enums import HeadKind, Pooling
from nunatak_contract.errors import needs_extra

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
        from nunatak_client import Client

        with Client(server) as client:
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
    full = f"{found['tasks']} full models, MB"
    table = plain_table("own layers", "own MB a task", f"{found['tasks']} tasks, MB", full, "saved")
    for row in found["by_own_layers"]:
        numbers = (row["task_bytes"], row["shared_bytes"], found["dedicated_bytes"])
        shown = (f"{number / 1e6:,.1f}" for number in numbers)
        table.add_row(str(row["own_layers"]), *shown, f"{row['saved_share']:.1%}")
    return table
