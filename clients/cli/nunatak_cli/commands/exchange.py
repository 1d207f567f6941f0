"""`nunatak task import|export|push|pull`: versions from other places, and to them."""

# ruff: noqa: PLC0415 - torch is imported when a command runs, not for --help

from pathlib import Path
from typing import Annotated

import typer

from nunatak_cli.failures import needs_extra
from nunatak_cli.options import (
    BackboneOption,
    ExportFormat,
    ImportFormat,
    JsonOption,
    LogitUseName,
    NewAliasOption,
    RegistryOption,
    RevisionOption,
)
from nunatak_cli.output import console, print_json
from nunatak_cli.registries import created_registry, existing_registry
from nunatak_contract.enums import OnLong, ProblemType

ReferenceArgument = Annotated[
    str, typer.Argument(metavar="REF", help="Task: name, name@alias or name/version.")
]
PlaceArgument = Annotated[
    str,
    typer.Argument(
        metavar="FOLDER|HUB_ID",
        help="A folder, spelt as a path (./name), or a repository on the hub (owner/name).",
    ),
]


def import_(  # noqa: PLR0913 - one parameter per option is how typer works
    place: PlaceArgument,
    *,
    task: Annotated[str, typer.Option(metavar="NAME", help="Name of the task.")],
    kind: Annotated[
        ImportFormat, typer.Option(help="Whose folder it is; auto looks at its files.")
    ] = ImportFormat.AUTO,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Names of the logits, in order. Absent: those that the folder has.",
            show_default=False,
        ),
    ] = None,
    default_label: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL",
            help="The label that means that nothing was found. Absent: of two, the first.",
            show_default=False,
        ),
    ] = None,
    on_long: Annotated[
        OnLong | None,
        typer.Option(
            help="What becomes of longer texts. Absent: windows, and cut for ranking.",
            show_default=False,
        ),
    ] = None,
    problem_type: Annotated[
        ProblemType | None,
        typer.Option(
            help="How logits become scores: softmax, sigmoid, or as they are. Absent: as "
            "transformers does.",
            show_default=False,
        ),
    ] = None,
    head: Annotated[
        LogitUseName | None,
        typer.Option(
            help="What one logit is for. Absent: a ranking if the folder is a cross-encoder.",
            show_default=False,
        ),
    ] = None,
    backbone: BackboneOption = None,
    allow_other_base: Annotated[
        bool,
        typer.Option(
            "--allow-other-base",
            help="Take an adapter whose folder names another base than the backbone, or none.",
        ),
    ] = False,
    revision: RevisionOption = None,
    promote: NewAliasOption = None,
    note: Annotated[str, typer.Option(metavar="TEXT", help="A remark to keep with it.")] = "",
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish a model that other programs trained, as far as it differs from the backbone."""
    with needs_extra("model"):
        from nunatak_artifact.interchange import ImportChoices, LogitUse
        from nunatak_cli.exchange import ImportRequest, import_task
        from nunatak_cli.views.exchange import published_json, published_lines
    choices = ImportChoices(
        labels=None if labels is None else tuple(label.strip() for label in labels.split(",")),
        problem_type=problem_type,
        logit_use=None if head is None else LogitUse(head.value),
        allows_other_base=allow_other_base,
    )
    request = ImportRequest(
        place=place,
        revision=revision,
        task=task,
        kind=kind,
        choices=choices,
        backbone=backbone,
        note=note,
        default_label=default_label,
        on_long=on_long,
    )
    with created_registry(registry) as opened:
        published = import_task(request, opened, alias=promote)
    if as_json:
        print_json(published_json(published, alias=promote))
    else:
        console().print(published_lines(published, alias=promote))


def export(
    reference: ReferenceArgument,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="To write to; new or empty.")],
    *,
    wanted: Annotated[
        ExportFormat, typer.Option("--format", help="What is to read it.")
    ] = ExportFormat.TRANSFORMERS,
    backbone: BackboneOption = None,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a version as a folder that other programs load."""
    with needs_extra("model"):
        from nunatak_cli.exchange import export_task
    with existing_registry(registry) as opened:
        manifest = export_task(
            reference, folder.expanduser(), opened, wanted=wanted, source=backbone
        )
    if as_json:
        print_json({"reference": manifest.reference, "folder": str(folder), "format": wanted.value})
    else:
        console().print(f"wrote {manifest.reference} to {folder} ({wanted})", soft_wrap=True)


def push(
    reference: ReferenceArgument,
    place: PlaceArgument,
    *,
    public: Annotated[
        bool, typer.Option("--public", help="Let everybody read the repository if it is new.")
    ] = False,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a version with its task card into a folder or a repository on the hub."""
    with needs_extra("model"):
        from nunatak_cli.exchange import push_task
    with existing_registry(registry) as opened:
        manifest, pushed = push_task(reference, place, opened, private=not public)
    if as_json:
        print_json({"reference": manifest.reference, "place": pushed})
    else:
        console().print(f"pushed {manifest.reference} to {pushed}", soft_wrap=True)


def pull(
    place: PlaceArgument,
    *,
    task: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Its name here. Absent: as there.", show_default=False),
    ] = None,
    revision: RevisionOption = None,
    backbone: BackboneOption = None,
    promote: NewAliasOption = None,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish a version that somebody pushed, once it has answered as it did there."""
    with needs_extra("model"):
        from nunatak_cli.exchange import pull_task
        from nunatak_cli.views.exchange import published_json, published_lines
    with created_registry(registry) as opened:
        published = pull_task(
            place, opened, revision=revision, task=task, backbone=backbone, alias=promote
        )
    if as_json:
        print_json(published_json(published, alias=promote))
    else:
        console().print(published_lines(published, alias=promote))
