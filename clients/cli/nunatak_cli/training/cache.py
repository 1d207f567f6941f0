"""`nunatak cache`: the files that training keeps on disk so that later runs do less work."""

# ruff: noqa: PLC0415 - a command imports the training package when it runs, not for --help

from typing import TYPE_CHECKING

from rich.filesize import decimal
from rich.table import Table

from nunatak_cli.options import JsonOption, group
from nunatak_cli.output import console, plain_table, print_outcome
from nunatak_contract.errors import needs_extra

if TYPE_CHECKING:
    from nunatak_training.cache import CacheContents


def show(*, as_json: JsonOption = False) -> None:
    """Show the trunk states of data sets, and the checkpoints of killed runs."""
    with needs_extra("training"):
        from nunatak_training.cache import cache_contents
    contents = cache_contents()
    document = {
        "folder": str(contents.folder),
        "num_bytes": contents.num_bytes,
        "states": [{"used_at": it.used_at, **it.facts.model_dump()} for it in contents.states],
        "checkpoints": [
            {"written_at": it.written_at, "num_bytes": it.num_bytes} for it in contents.checkpoints
        ],
    }
    print_outcome(document, _contents_table(contents), _total_line(contents), as_json=as_json)


def clear() -> None:
    """Remove every file that no running process needs."""
    with needs_extra("training"):
        from nunatak_training.cache import clear_cache
    console().print(_total_line(clear_cache()))


def _contents_table(contents: "CacheContents") -> Table:
    """Return one row per file, the least recently used first."""
    table = plain_table("what", "backbone", "depth", "texts", "tokens", "size", "last used")
    for stored in contents.states:
        facts = stored.facts
        counts = (str(facts.depth), f"{facts.num_inputs:,}", f"{facts.num_tokens:,}")
        size, used = decimal(facts.num_bytes), f"{stored.used_at:%Y-%m-%d %H:%M}"
        table.add_row("trunk states", facts.backbone, *counts, size, used)
    for stored in contents.checkpoints:
        written = f"{stored.written_at:%Y-%m-%d %H:%M}"
        table.add_row("checkpoint", "", "", "", "", decimal(stored.num_bytes), written)
    return table


def _total_line(contents: "CacheContents") -> str:
    return f"{decimal(contents.num_bytes)} in {contents.folder}"


cache_app = group(
    "cache",
    "Show and clear the cache of training on disk (folder: NUNATAK_CACHE).",
    {"show": (show, "nunatak cache show"), "clear": (clear, "nunatak cache clear")},
)
