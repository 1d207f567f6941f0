"""`nunatak key`: the API keys of a server."""

# ruff: noqa: PLC0415 - a command imports the server package when it runs, not for --help

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from nunatak_cli.options import JsonOption, group
from nunatak_cli.output import plain_table, print_outcome, print_part, print_text, remark
from nunatak_contract.errors import invalid_option, needs_extra
from nunatak_contract.record import problems_text

if TYPE_CHECKING:
    from nunatak_server.access.keys import Keys

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


class ScopeName(StrEnum):
    PREDICT = "predict"
    READ = "read"
    ADMIN = "admin"


def _quota(resource: str, period: str) -> Any:  # noqa: ANN401 - an option, as typer types it
    text = f"Most {resource} of the key in a {period}, in each process (no limit)."
    return typer.Option(min=1, metavar="N", rich_help_panel="Quotas", help=text)


def create(  # noqa: PLR0913 - one parameter per option is how typer works
    name: KeyNameArgument,
    *,
    file: FileOption,
    scope: Annotated[
        list[ScopeName] | None,
        typer.Option(
            metavar="SCOPE", help="Scope of the key: predict, read or admin (predict). Repeatable."
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME|PREFIX*", help="Task that the key may use (all). Repeatable."),
    ] = None,
    weight: Annotated[
        float,
        typer.Option(
            min=0.001,
            max=1000,
            metavar="N",
            help="Share of the turns, next to the weights of other keys.",
        ),
    ] = 1.0,
    days: Annotated[
        int | None,
        typer.Option(min=1, max=36_500, metavar="N", help="Days until the key expires (never)."),
    ] = None,
    max_requests_per_minute: Annotated[int | None, _quota("requests", "minute")] = None,
    max_requests_per_day: Annotated[int | None, _quota("requests", "day")] = None,
    max_tokens_per_minute: Annotated[int | None, _quota("tokens", "minute")] = None,
    max_tokens_per_day: Annotated[int | None, _quota("tokens", "day")] = None,
) -> None:
    """Make a key and print it; the key is never shown again."""
    with needs_extra("server"):
        from nunatak_server.access.keys import KeyRecord, change_keys, digest_of, new_key

    key, now = new_key(), datetime.now(UTC).replace(microsecond=0)
    quotas = {
        "requests_per_minute": max_requests_per_minute,
        "requests_per_day": max_requests_per_day,
        "tokens_per_minute": max_tokens_per_minute,
        "tokens_per_day": max_tokens_per_day,
    }
    members = {
        "name": name,
        "scopes": [each.value for each in scope or (ScopeName.PREDICT,)],
        "tasks": task or ["*"],
        "weight": weight,
        "created_at": now,
        "expires_at": None if days is None else now + timedelta(days=days),
        "quotas": {name: most for name, most in quotas.items() if most is not None} or None,
        "sha256": digest_of(key.encode()),
    }
    try:
        record = KeyRecord.model_validate(members)
    except ValidationError as error:
        given = error.errors(include_url=False, include_context=False)[0]["input"]
        raise invalid_option(f"{problems_text(error)}, got {given!r}") from error

    def add(keys: "Keys") -> "Keys":
        if any(each.name == record.name for each in keys):
            raise invalid_option(
                f"there is a key named {record.name!r} already; choose another name or revoke it"
            )
        return (*keys, record)

    change_keys(file, add)
    print_text(key + "\n")
    remark("store this key now: it is never shown again; programs read it from NUNATAK_API_KEY")


def list_keys(*, file: FileOption, as_json: JsonOption = False) -> None:
    """List the owners and the permissions of the keys; the keys themselves stay hidden."""
    with needs_extra("server"):
        from nunatak_server.access.keys import read_keys

    keys, _ = read_keys(file)
    document = {
        "keys": [{**it.model_dump(mode="json"), "scopes": sorted(it.scopes)} for it in keys]
    }
    table = plain_table(
        "name", "scopes", "tasks", "weight", "quotas", "created", "expires", "sha256"
    )
    for key in keys:
        table.add_row(
            key.name,
            ", ".join(sorted(key.scopes)),
            ", ".join(key.tasks),
            f"{key.weight:g}",
            ", ".join(
                f"{most} {name.replace('_', ' ')}" for name, most in (key.quotas or {}).items()
            ),
            f"{key.created_at:%Y-%m-%d}",
            "never" if key.expires_at is None else f"{key.expires_at:%Y-%m-%d}",
            key.sha256[:SHOWN_DIGITS],
        )
    print_outcome(document, table, as_json=as_json, empty=f"no keys in {file}")


def revoke(name: KeyNameArgument, *, file: FileOption) -> None:
    """Remove a key; running servers refuse it within seconds."""
    with needs_extra("server"):
        from nunatak_server.access.keys import change_keys

    def remove(keys: "Keys") -> "Keys":
        kept = tuple(each for each in keys if each.name != name)
        if len(kept) == len(keys):
            raise invalid_option(f"no key is named {name!r}; `nunatak key list` shows them")
        return kept

    change_keys(file, remove)
    print_part(f"revoked {name}")


key_app = group(
    "key",
    "Make, list and revoke the API keys of a server.",
    {
        "create": (
            create,
            "nunatak key create support --scope predict --task tone --task 'intent*'",
        ),
        "list": (list_keys, "nunatak key list --file keys.json"),
        "revoke": (revoke, "nunatak key revoke support"),
    },
)
