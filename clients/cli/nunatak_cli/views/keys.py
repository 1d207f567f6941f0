"""API keys as a table and as JSON; of the key itself only the start of its digest."""

from collections.abc import Sequence

from pydantic import JsonValue
from rich.table import Table

from nunatak_server.access.keys import KeyRecord

SHOWN_DIGITS = 8


def key_table(keys: Sequence[KeyRecord]) -> Table:
    """One line for each key."""
    table = Table("name", "scopes", "tasks", "weight", "created", "expires", "sha256")
    for key in keys:
        table.add_row(
            key.name,
            ", ".join(sorted(key.scopes)),
            ", ".join(key.tasks),
            f"{key.weight:g}",
            f"{key.created_at:%Y-%m-%d}",
            "never" if key.expires_at is None else f"{key.expires_at:%Y-%m-%d}",
            key.sha256[:SHOWN_DIGITS],
        )
    return table


def key_json(key: KeyRecord) -> dict[str, JsonValue]:
    """Return one key, with its scopes in order."""
    return {**key.model_dump(mode="json"), "scopes": [scope.value for scope in sorted(key.scopes)]}
