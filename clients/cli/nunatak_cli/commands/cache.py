"""`nunatak cache`: what training keeps on disk to spare itself work."""

# ruff: noqa: PLC0415 - heavy imports run when their command does, not for --help

import typer

from nunatak_cli.failures import needs_extra
from nunatak_cli.options import JsonOption, example
from nunatak_cli.output import console, print_json

EXAMPLES = {"show": "nunatak cache show", "clear": "nunatak cache clear"}


def cache_app() -> typer.Typer:
    """Put the commands of the group together."""
    app = typer.Typer(
        name="cache",
        help="See and clear what training keeps on disk (folder: NUNATAK_CACHE).",
        no_args_is_help=True,
        epilog=example(EXAMPLES["show"]),
    )
    for name, command in {"show": show, "clear": clear}.items():
        app.command(name, epilog=example(EXAMPLES[name]))(command)
    return app


def show(*, as_json: JsonOption = False) -> None:
    """Show the trunk states of data sets, and the checkpoints of killed runs."""
    with needs_extra("training"):
        from nunatak_cli.views.cache import cache_json, cache_line, cache_table
        from nunatak_training import cache_contents
    contents = cache_contents()
    if as_json:
        print_json(cache_json(contents))
        return
    if contents.states or contents.checkpoints:
        console().print(cache_table(contents))
    console().print(cache_line(contents))


def clear() -> None:
    """Remove all that no running process needs."""
    with needs_extra("training"):
        from nunatak_cli.views.cache import cache_line
        from nunatak_training import clear_cache
    console().print(cache_line(clear_cache()))
