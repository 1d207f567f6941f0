"""`nunatak backbone`: add checkpoints as backbones, list them and check them."""

# ruff: noqa: PLC0415 - a command imports torch and transformers when it runs, not for --help

from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import JsonValue
from rich.table import Table

from nunatak_cli.options import JsonOption, RevisionOption, example
from nunatak_cli.output import console, print_json
from nunatak_contract.errors import needs_extra

if TYPE_CHECKING:
    from nunatak_artifact.backbones import AddedBackbone

EXAMPLES = {
    "add": "nunatak backbone add sentence-transformers/all-MiniLM-L6-v2 --name my-minilm",
    "list": "nunatak backbone list",
    "show": "nunatak backbone show my-minilm",
    "verify": "nunatak backbone verify",
}

AddedArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of an added backbone, for --backbone.")
]


def backbone_app() -> typer.Typer:
    """Return the group with its commands."""
    app = typer.Typer(
        name="backbone",
        help="Add checkpoints as backbones, list them and check them.",
        no_args_is_help=True,
        epilog=example(EXAMPLES["add"]),
    )
    commands = {"add": add, "list": list_, "show": show, "verify": verify}
    for name, command in commands.items():
        app.command(name, epilog=example(EXAMPLES[name]))(command)
    return app


def add(
    place: Annotated[
        str,
        typer.Argument(
            metavar="PATH|HUB_ID",
            help="A checkpoint folder, written as a path (./name), or a repository on the hub.",
        ),
    ],
    *,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name for --backbone. Absent: the last part of the path or hub id.",
            show_default=False,
        ),
    ] = None,
    revision: RevisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read a checkpoint with transformers, compare its vectors, and keep it for --backbone."""
    with needs_extra("training"):
        from nunatak_artifact.backbones import add_backbone
        from nunatak_artifact.interchange import HuggingFaceHub
    added = add_backbone(place, name=name, hub=HuggingFaceHub(), revision=revision)
    if as_json:
        print_json(_json(added))
        return
    console().print(
        f"added {added.name}: {_shape(added)}\n"
        f"vectors equal transformers' to {added.difference:.1e} of their size\n"
        f"use it with --backbone {added.name}",
        soft_wrap=True,
    )


def list_(*, as_json: JsonOption = False) -> None:
    """List the added backbones."""
    with needs_extra("model"):
        from nunatak_artifact.backbones import list_backbones
    found = list_backbones()
    if as_json:
        print_json({"backbones": [_json(it) for it in found]})
    elif found:
        table = Table("name", "architecture", "layers", "width", "tokens", "digest", box=None)
        for it in found:
            numbers = (it.num_layers, it.hidden_width, it.max_tokens)
            table.add_row(it.name, it.model_type, *map(str, numbers), it.digest[:12])
        console().print(table)
    else:
        console().print("no backbone was added; `nunatak backbone add` adds one")


def show(name: AddedArgument, *, as_json: JsonOption = False) -> None:
    """Show the origin, the shape and the digest of an added backbone."""
    with needs_extra("model"):
        from nunatak_artifact.backbones import read_backbone
        from nunatak_model.checkpoint import added_backbones
    found = read_backbone(name)
    folder = str(added_backbones() / name)
    if as_json:
        print_json({**_json(found), "folder": folder})
        return
    table = Table(show_header=False, box=None)
    for label, value in (
        ("name", found.name),
        ("source", found.source),
        ("shape", _shape(found)),
        ("digest", found.digest),
        ("difference", f"{found.difference:.1e} of the vectors' size, from transformers"),
        ("folder", folder),
    ):
        table.add_row(label, value)
    console().print(table, soft_wrap=True)


def verify(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="Only this backbone. Absent: all.", show_default=False
        ),
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Load the added backbones and compare their digests; exit 1 if one is damaged."""
    with needs_extra("model"):
        from nunatak_artifact.backbones import list_backbones, verify_backbone
    names = [it.name for it in list_backbones()] if name is None else [name]
    problems = {it: verify_backbone(it) for it in names}
    if as_json:
        print_json(
            {"backbones": [{"name": it, "problem": found} for it, found in problems.items()]}
        )
    else:
        for it, found in problems.items():
            console().print(f"{it}: {found or 'whole'}", soft_wrap=True)
    if any(problems.values()):
        raise typer.Exit(1)


def _shape(added: "AddedBackbone") -> str:
    return (
        f"{added.model_type}, {added.num_layers} layers of width {added.hidden_width}, up to "
        f"{added.max_tokens} tokens"
    )


def _json(added: "AddedBackbone") -> dict[str, JsonValue]:
    return dict(added.model_dump(mode="json"))
