"""Two versions side by side, as a table and as JSON."""

from collections.abc import Iterable

from pydantic import JsonValue
from rich.table import Table

from nunatak_cli.views.tasks import labels_text
from nunatak_contract.manifest import TaskManifest
from nunatak_registry import Compared


def comparison_table(left: TaskManifest, right: TaskManifest, rows: Iterable[Compared]) -> Table:
    """One row per property; what is equal is dim."""
    table = Table(box=None, header_style="bold")
    table.add_column("")
    table.add_column(left.reference, overflow="fold")
    table.add_column(right.reference, overflow="fold")
    table.add_column("change", justify="right", no_wrap=True)
    for row in rows:
        cells = (row.name, _text(row.left), _text(row.right), _change(row))
        table.add_row(*cells, style=None if row.differs else "dim")
    return table


def comparison_json(
    left: TaskManifest, right: TaskManifest, rows: Iterable[Compared]
) -> dict[str, JsonValue]:
    """All properties, with those that differ named once more."""
    compared = list(rows)
    properties: dict[str, JsonValue] = {
        row.name: {"left": row.left, "right": row.right} for row in compared
    }
    return {
        "left": left.reference,
        "right": right.reference,
        "properties": properties,
        "differing": [row.name for row in compared if row.differs],
    }


def _text(value: JsonValue) -> str:
    match value:
        case None:
            return "-"
        case list():
            return labels_text([str(item) for item in value]) or "none"
        case bool():
            return str(value).lower()
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.4g}"
        case _:
            return str(value)


def _change(row: Compared) -> str:
    change = row.change
    if not change:
        return ""
    return f"{change:+,}" if isinstance(change, int) else f"{change:+.4f}"
