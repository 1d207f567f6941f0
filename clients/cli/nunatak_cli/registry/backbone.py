"""`nunatak backbone`: add checkpoints as backbones, list them and check them."""

# ruff: noqa: PLC0415 - a command imports torch and transformers when it runs, not for --help

from typing import TYPE_CHECKING, Annotated

import typer

from nunatak_cli.options import JsonOption, QuietOption, RevisionOption, group
from nunatak_cli.output import facts_table, plain_table, print_outcome
from nunatak_contract.errors import needs_extra
from nunatak_contract.names import DEFAULT_BACKBONE
from nunatak_contract.progress import Work, shown_progress

if TYPE_CHECKING:
    from nunatak_exchange.backbones import AddedBackbone

AddedArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of an added backbone, for --backbone.")
]


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
            metavar="NAME", help="Name for --backbone. Absent: the last part of the path or hub id."
        ),
    ] = None,
    revision: RevisionOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Read a checkpoint with transformers, compare its vectors, and keep it for --backbone."""
    with needs_extra("training"):
        from nunatak_exchange.backbones import add_backbone
    with shown_progress(quiet=quiet, as_json=as_json) as progress:
        progress.begin(Work("adding the backbone"))
        progress.tell("reading the checkpoint and comparing its vectors with transformers'")
        added = add_backbone(place, name=name, revision=revision)
    print_outcome(
        added.model_dump(mode="json"),
        f"added {added.name}: {_shape(added)}\n"
        f"vectors equal transformers' to {added.difference:.1e} of their size\n"
        f"use it with --backbone {added.name}",
        as_json=as_json,
    )


def list_(*, as_json: JsonOption = False) -> None:
    """List the added backbones, and name the built-in one."""
    with needs_extra("model"):
        from nunatak_exchange.backbones import list_backbones
    found = list_backbones()
    table = plain_table("name", "architecture", "layers", "width", "tokens", "digest")
    for it in found:
        numbers = (it.num_layers, it.hidden_width, it.max_tokens)
        table.add_row(it.name, it.model_type, *map(str, numbers), it.digest[:12])
    print_outcome(
        {"backbones": found},
        table,
        f"built in: {DEFAULT_BACKBONE} (all-MiniLM-L6-v2, English); "
        "`nunatak backbone add` adds others",
        as_json=as_json,
    )


def show(name: AddedArgument, *, as_json: JsonOption = False) -> None:
    """Show the origin, the shape and the digest of an added backbone."""
    with needs_extra("model"):
        from nunatak_exchange.backbones import read_backbone
        from nunatak_model.checkpoint import added_backbones
    found = read_backbone(name)
    folder = str(added_backbones() / name)
    facts = {
        "name": found.name,
        "source": found.source,
        "shape": _shape(found),
        "digest": found.digest,
        "difference": f"{found.difference:.1e} of the vectors' size, from transformers",
        "folder": folder,
    }
    print_outcome({**found.model_dump(), "folder": folder}, facts_table(facts), as_json=as_json)


def verify(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only this backbone. Absent: all.")
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Load the added backbones and compare their digests; exit 1 if one is damaged."""
    with needs_extra("model"):
        from nunatak_exchange.backbones import list_backbones, verify_backbone
    names = [it.name for it in list_backbones()] if name is None else [name]
    problems = {it: verify_backbone(it) for it in names}
    print_outcome(
        {"backbones": [{"name": it, "problem": found} for it, found in problems.items()]},
        *(f"{it}: {found or 'whole'}" for it, found in problems.items()),
        as_json=as_json,
    )
    if any(problems.values()):
        raise typer.Exit(1)


def _shape(added: "AddedBackbone") -> str:
    return (
        f"{added.model_type}, {added.num_layers} layers of width {added.hidden_width}, up to "
        f"{added.max_tokens} tokens"
    )


backbone_app = group(
    "backbone",
    "Add checkpoints as backbones, list them and check them.",
    {
        "add": (
            add,
            "nunatak backbone add sentence-transformers/all-MiniLM-L6-v2 --name my-minilm",
        ),
        "list": (list_, "nunatak backbone list"),
        "show": (show, "nunatak backbone show my-minilm"),
        "verify": (verify, "nunatak backbone verify"),
    },
)
