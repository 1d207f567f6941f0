"""`nunatak key`: the API keys that a server asks for."""

# ruff: noqa: PLC0415 - what reads the file is imported when its command runs, not for --help

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nunatak_cli.failures import needs_extra
from nunatak_cli.options import JsonOption, example
from nunatak_cli.output import console, error_console, print_json, print_text

FileOption = Annotated[
    Path,
    typer.Option(
        "--file",
        envvar="NUNATAK_API_KEYS_FILE",
        metavar="PATH",
        help="File of keys, as `nunatak serve --api-keys-file` reads it.",
    ),
]
KeyNameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Who gets the key; servers count by this name.")
]

EXAMPLES = {
    "create": "nunatak key create support --scope predict --task tone --task 'intent*'",
    "list": "nunatak key list --file keys.json",
    "revoke": "nunatak key revoke support",
}


class ScopeName(StrEnum):
    """What a key may be for."""

    PREDICT = "predict"
    READ = "read"
    ADMIN = "admin"


def key_app() -> typer.Typer:
    """Put the commands of the group together."""
    app = typer.Typer(
        name="key",
        help="Make, list and revoke the API keys of a server.",
        no_args_is_help=True,
        epilog=example(EXAMPLES["create"]),
    )
    for name, command in {"create": create, "list": list_keys, "revoke": revoke}.items():
        app.command(name, epilog=example(EXAMPLES[name]))(command)
    return app


def create(
    name: KeyNameArgument,
    *,
    file: FileOption,
    scope: Annotated[
        list[ScopeName] | None,
        typer.Option(help="What it is for (predict). Repeat for several.", show_default=False),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|PREFIX*",
            help="Task it may know of (all). Repeat for several.",
            show_default=False,
        ),
    ] = None,
    weight: Annotated[
        float, typer.Option(min=0.001, max=1000, help="Share of a crowded server.")
    ] = 1.0,
    days: Annotated[
        int | None,
        typer.Option(
            min=1, max=36_500, metavar="N", help="Days it is valid (for ever).", show_default=False
        ),
    ] = None,
) -> None:
    """Make a key, and print it: this is the only time that it is shown."""
    with needs_extra("server"):
        from nunatak_cli.key_files import KeyRequest, create_key

    wanted = KeyRequest(
        name=name,
        scopes=tuple(each.value for each in scope or (ScopeName.PREDICT,)),
        tasks=tuple(task or ("*",)),
        weight=weight,
        days=days,
    )
    print_text(create_key(file, wanted) + "\n")
    error_console().print("keep it: it is shown this once; give it to programs as NUNATAK_API_KEY")


def list_keys(*, file: FileOption, as_json: JsonOption = False) -> None:
    """List the keys: who has them and what they are for; never the keys themselves."""
    from nunatak_cli.views.keys import key_json, key_table

    with needs_extra("server"):
        from nunatak_server.access.files import read_keys

    keys = read_keys(file).keys
    if as_json:
        print_json({"keys": [key_json(key) for key in keys]})
    else:
        console().print(key_table(keys))


def revoke(name: KeyNameArgument, *, file: FileOption) -> None:
    """Take a key back; servers that run follow within seconds."""
    with needs_extra("server"):
        from nunatak_cli.key_files import revoke_key

    revoke_key(file, name)
    console().print(f"revoked {name}")
