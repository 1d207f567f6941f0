"""The contents of the cache folder, as a table and as JSON."""

from pydantic import JsonValue
from rich.filesize import decimal
from rich.table import Table

from nunatak_training import CacheContents


def cache_table(contents: CacheContents) -> Table:
    """One line a file, the least recently used first."""
    table = Table("what", "backbone", "depth", "texts", "tokens", "size", "last used", box=None)
    for stored in contents.states:
        facts = stored.facts
        counts = (str(facts.depth), f"{facts.num_inputs:,}", f"{facts.num_tokens:,}")
        size, used = decimal(facts.num_bytes), f"{stored.used_at:%Y-%m-%d %H:%M}"
        table.add_row("trunk states", facts.backbone, *counts, size, used)
    for stored in contents.checkpoints:
        written = f"{stored.written_at:%Y-%m-%d %H:%M}"
        table.add_row("checkpoint", "", "", "", "", decimal(stored.num_bytes), written)
    return table


def cache_line(contents: CacheContents) -> str:
    """How much there is, and where."""
    return f"{decimal(contents.num_bytes)} in {contents.folder}"


def cache_json(contents: CacheContents) -> dict[str, JsonValue]:
    """All files."""
    return {
        "folder": str(contents.folder),
        "num_bytes": contents.num_bytes,
        "states": [
            {"used_at": stored.used_at.isoformat(), **stored.facts.model_dump(mode="json")}
            for stored in contents.states
        ],
        "checkpoints": [
            {"written_at": stored.written_at.isoformat(), "num_bytes": stored.num_bytes}
            for stored in contents.checkpoints
        ],
    }
