"""`nunatak key`: the API keys of a server."""

# ruff: noqa: PLC0415 - a command imports the server package when it runs, not for --help

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import JsonValue, ValidationError
from rich.table import Table

from nunatak_cli.options import JsonOption, example
from nunatak_cli.output import console, error_console, print_json, print_text
from nunatak_contract.errors import NunatakError, needs_extra

if TYPE_CHECKING:
    from nunatak_server.access.keys import KeyRecord, Keys

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
    str,
    typer.Argument(metavar="NAME", help="Owner of the key; the server's metrics use this name."),
]
SHOWN_DIGITS = 8
"""Hexadecimal digits of a key's SHA-256 in the table."""

EXAMPLES = {
    "create": "nunatak key create support --scope predict --task tone --task 'intent*'",
    "list": "nunatak key list --file keys.json",
    "revoke": "nunatak key revoke support",
}


class ScopeName(StrEnum):
    """The permissions of a key."""

    PREDICT = "predict"
    READ = "read"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRequest:
    """The permissions and the lifetime of a new key."""

    name: str
    scopes: tuple[str, ...]
    tasks: tuple[str, ...]
    weight: float
    days: int | None


def key_app() -> typer.Typer:
    """Return the group with its commands."""
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
        typer.Option(help="Scope of the key (predict). Repeatable.", show_default=False),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|PREFIX*",
            help="Task that the key may use (all). Repeatable.",
            show_default=False,
        ),
    ] = None,
    weight: Annotated[
        float,
        typer.Option(
            min=0.001, max=1000, help="Share of the turns, next to the weights of other keys."
        ),
    ] = 1.0,
    days: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=36_500,
            metavar="N",
            help="Days until the key expires (never).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make a key and print it; the key is never shown again."""
    wanted = KeyRequest(
        name=name,
        scopes=tuple(each.value for each in scope or (ScopeName.PREDICT,)),
        tasks=tuple(task or ("*",)),
        weight=weight,
        days=days,
    )
    print_text(_create_key(file, wanted) + "\n")
    error_console().print(
        "store this key now: it is never shown again; programs read it from NUNATAK_API_KEY"
    )


def list_keys(*, file: FileOption, as_json: JsonOption = False) -> None:
    """List the owners and the permissions of the keys; the keys themselves stay hidden."""
    with needs_extra("server"):
        from nunatak_server.access.keys import read_keys

    keys = read_keys(file).keys
    if as_json:
        print_json({"keys": [_key_json(key) for key in keys]})
    else:
        console().print(_keys_table(keys))


def revoke(name: KeyNameArgument, *, file: FileOption) -> None:
    """Remove a key; running servers refuse it within seconds."""
    _revoke_key(file, name)
    console().print(f"revoked {name}")


def _create_key(file: Path, wanted: KeyRequest) -> str:
    """Make a key, write its digest to the file, and return the key.

    Raises:
        NunatakError: `invalid_option`, the name or a task is malformed, or the name is taken.
        KeyFileError: the file cannot be read or written.
    """
    with needs_extra("server"):
        from nunatak_server.access.keys import change_keys, digest_of, new_key

    key = new_key()
    record = _record(wanted, sha256=digest_of(key.encode()))

    def add(keys: "Keys") -> "Keys":
        if any(each.name == record.name for each in keys):
            raise NunatakError(
                "invalid_option",
                problem=f"there is a key named {record.name!r} already; choose another name or "
                "revoke it",
            )
        return (*keys, record)

    change_keys(file, add)
    return key


def _revoke_key(file: Path, name: str) -> None:
    """Remove a key from the file.

    Raises:
        NunatakError: `invalid_option`, no key has this name.
        KeyFileError: the file cannot be read or written.
    """
    with needs_extra("server"):
        from nunatak_server.access.keys import change_keys

    def remove(keys: "Keys") -> "Keys":
        kept = tuple(each for each in keys if each.name != name)
        if len(kept) == len(keys):
            raise NunatakError(
                "invalid_option", problem=f"no key is named {name!r}; `nunatak key list` shows them"
            )
        return kept

    change_keys(file, remove)


def _record(wanted: KeyRequest, *, sha256: str) -> "KeyRecord":
    from nunatak_server.access.keys import KeyRecord

    now = datetime.now(UTC).replace(microsecond=0)
    try:
        return KeyRecord.model_validate(
            {
                "name": wanted.name,
                "sha256": sha256,
                "scopes": wanted.scopes,
                "tasks": wanted.tasks,
                "weight": wanted.weight,
                "created_at": now,
                "expires_at": None if wanted.days is None else now + timedelta(days=wanted.days),
            }
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise NunatakError(
            "invalid_option", problem=f"{place}: {first['msg']}, got {first['input']!r}"
        ) from error


def _keys_table(keys: Sequence["KeyRecord"]) -> Table:
    """Return one row per key, with only the start of its digest."""
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


def _key_json(key: "KeyRecord") -> dict[str, JsonValue]:
    return {**key.model_dump(mode="json"), "scopes": [scope.value for scope in sorted(key.scopes)]}
