"""`nunatak cache`: the files that training keeps on disk so that later runs do less work."""

# ruff: noqa: PLC0415 - a command imports the training package when it runs, not for --help

from typing import TYPE_CHECKING

import typer
from pydantic import JsonValue
from rich.filesize import decimal
from rich.table import Table

from nunatak_cli.options import JsonOption, example
from nunatak_cli.output import console, print_json
from nunatak_contract.errors import needs_extra

if TYPE_CHECKING:
    from nunatak_training.cache import CacheContents

EXAMPLES = {"show": "nunatak cache show", "clear": "nunatak cache clear"}


def cache_app() -> typer.Typer:
    """Return the group with its commands."""
    app = typer.Typer(
        name="cache",
        help="Show and clear the cache of training on disk (folder: NUNATAK_CACHE).",
        no_args_is_help=True,
        epilog=example(EXAMPLES["show"]),
    )
    for name, command in {"show": show, "clear": clear}.items():
        app.command(name, epilog=example(EXAMPLES[name]))(command)
    return app


def show(*, as_json: JsonOption = False) -> None:
    """Show the trunk states of data sets, and the checkpoints of killed runs."""
    with needs_extra("training"):
        from nunatak_training.cache import cache_contents
    contents = cache_contents()
    if as_json:
        print_json(_contents_json(contents))
        return
    if contents.states or contents.checkpoints:
        console().print(_contents_table(contents))
    console().print(_total_line(contents))


def clear() -> None:
    """Remove every file that no running process needs."""
    with needs_extra("training"):
        from nunatak_training.cache import clear_cache
    console().print(_total_line(clear_cache()))


def _contents_table(contents: "CacheContents") -> Table:
    """Return one row per file, the least recently used first."""
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


def _total_line(contents: "CacheContents") -> str:
    return f"{decimal(contents.num_bytes)} in {contents.folder}"


def _contents_json(contents: "CacheContents") -> dict[str, JsonValue]:
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
