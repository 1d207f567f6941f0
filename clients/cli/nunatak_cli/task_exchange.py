"""`nunatak task import|export|push|pull`: exchange versions with other programs and the hub."""

# ruff: noqa: PLC0415 - a command imports torch when it runs, not for --help
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, assert_never

import typer
from pydantic import JsonValue
from rich.text import Text

from nunatak_cli import registries
from nunatak_cli.options import (
    BackboneOption,
    CreateOption,
    ExportFormat,
    JsonOption,
    NewAliasOption,
    ReferenceArgument,
    RegistryOption,
    RevisionOption,
    assignments,
)
from nunatak_cli.output import print_outcome
from nunatak_cli.registries import existing_registry, publishing_registry
from nunatak_contract.enums import ImportFormat, LogitUse, OnLong, ProblemType, Reads
from nunatak_contract.errors import NunatakError, needs_extra

if TYPE_CHECKING:
    from nunatak_artifact import VersionDraft
    from nunatak_artifact.interchange import ImportChoices
    from nunatak_contract.manifest import TaskManifest
    from nunatak_registry import Registry

PlaceArgument = Annotated[
    str,
    typer.Argument(
        metavar="FOLDER|HUB_ID",
        help="A folder, written as a path (./name), or a repository on the hub (owner/name).",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """A folder of another program, and the choices for its import."""

    place: str
    revision: str | None
    task: str
    kind: ImportFormat
    choices: "ImportChoices"
    backbone: str | None
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """An imported version."""

    manifest: "TaskManifest"
    found: str
    """The content of the folder, in words."""
    is_new: bool
    """Whether the version is new; False: the registry had its content already."""
    moved: str | None
    """The line about the alias; None without an alias."""


def import_(  # noqa: PLR0913 - one parameter per option is how typer works
    place: PlaceArgument,
    *,
    task: Annotated[str, typer.Option(metavar="NAME", help="Name of the task.")],
    kind: Annotated[
        ImportFormat, typer.Option(help="Library that wrote the folder; auto: its files decide.")
    ] = ImportFormat.AUTO,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Names of the logits, in order. Absent: the names in the folder.",
        ),
    ] = None,
    default_label: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL",
            help="The label that means that nothing was found. Absent: the first of two labels.",
        ),
    ] = None,
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=X",
            help="The score from which a label of a multi-label task applies. Repeatable. Absent: "
            "0.5.",
        ),
    ] = None,
    reads: Annotated[
        Reads | None,
        typer.Option(
            help="Whether the task reads a single text or a pair of texts; it then refuses the "
            "other. Absent: both.",
        ),
    ] = None,
    on_long: Annotated[
        OnLong | None,
        typer.Option(
            help=(
                "Treatment of a text with more tokens than the task reads at once. Absent: "
                "windows, and cut for ranking."
            ),
        ),
    ] = None,
    problem_type: Annotated[
        ProblemType | None,
        typer.Option(
            help="How logits become scores: by softmax, by sigmoid, or unchanged. Absent: as "
            "transformers does.",
        ),
    ] = None,
    head: Annotated[
        LogitUse | None,
        typer.Option(
            help="Head of a model with one logit. Absent: ranking if the folder is a "
            "cross-encoder.",
        ),
    ] = None,
    backbone: BackboneOption = None,
    allow_other_base: Annotated[
        bool,
        typer.Option(
            "--allow-other-base",
            help="Accept an adapter whose folder names another base model, or none.",
        ),
    ] = False,
    revision: RevisionOption = None,
    promote: NewAliasOption = None,
    note: Annotated[str, typer.Option(metavar="TEXT", help="A remark on the version.")] = "",
    registry: RegistryOption = None,
    create: CreateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Publish a model that another program trained, as its difference from the backbone."""
    with needs_extra("model"):
        from nunatak_artifact.interchange import ImportChoices
    choices = ImportChoices(
        labels=None if labels is None else tuple(label.strip() for label in labels.split(",")),
        problem_type=problem_type,
        logit_use=head,
        allows_other_base=allow_other_base,
        default_label=default_label,
        thresholds=_thresholds(threshold),
        reads=reads,
        on_long=on_long,
    )
    request = ImportRequest(
        place=place,
        revision=revision,
        task=task,
        kind=kind,
        choices=choices,
        backbone=backbone,
        note=note,
    )
    with publishing_registry(registry, create=create) as opened:
        published = _import_task(request, opened, alias=promote)
    _show(published, alias=promote, as_json=as_json)


def export(
    reference: ReferenceArgument,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="New or empty folder to write to.")
    ],
    *,
    wanted: Annotated[
        ExportFormat, typer.Option("--format", help="Format of the folder.")
    ] = ExportFormat.TRANSFORMERS,
    backbone: BackboneOption = None,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a version as a folder that other programs load."""
    with existing_registry(registry) as opened:
        manifest = _export_task(
            reference, folder.expanduser(), opened, wanted=wanted, source=backbone
        )
    document = {"reference": manifest.reference, "folder": str(folder), "format": wanted}
    line = f"wrote {manifest.reference} to {folder} ({wanted})"
    print_outcome(document, line, as_json=as_json)


def push(
    reference: ReferenceArgument,
    place: PlaceArgument,
    *,
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public.")] = False,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a version with its task card to a folder or to a repository on the hub."""
    with needs_extra("model"):
        from nunatak_artifact import interchange
    with existing_registry(registry) as opened:
        manifest = opened.resolve(reference)
        blobs = _blobs(opened, manifest)
        hub = interchange.HuggingFaceHub()
        pushed = interchange.push(manifest, blobs, place, hub=hub, private=not public)
    document = {"reference": manifest.reference, "place": pushed}
    print_outcome(document, f"pushed {manifest.reference} to {pushed}", as_json=as_json)


def pull(  # noqa: PLR0913 - one parameter per option is how typer works
    place: PlaceArgument,
    *,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the task in this registry. Absent: its original name.",
        ),
    ] = None,
    revision: RevisionOption = None,
    backbone: BackboneOption = None,
    promote: NewAliasOption = None,
    registry: RegistryOption = None,
    create: CreateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Publish a version that was pushed, if it computes its recorded logits here too."""
    with needs_extra("model"):
        from nunatak_artifact.interchange import (
            HuggingFaceHub,
            draft_pulled,
            fetched,
            hub,
            read_hub_folder,
        )
        from nunatak_model import DEFAULT_BACKBONE, load_backbone
    with publishing_registry(registry, create=create) as opened:
        _check_alias(promote)
        with fetched(place, hub=HuggingFaceHub(), revision=revision, files=hub.FILES) as there:
            found = read_hub_folder(there.folder)
            loaded = load_backbone(backbone or DEFAULT_BACKBONE)
            draft = draft_pulled(found, loaded, task=task, origin=there.origin)
        published = _publish(draft, opened, promote, found=f"{found.manifest.reference} there")
    _show(published, alias=promote, as_json=as_json)


def _import_task(request: ImportRequest, registry: "Registry", *, alias: str | None) -> Published:
    """Import a folder, publish it, and point `alias`, if given, at the new version."""
    from nunatak_artifact.interchange import (
        Checkpoint,
        HuggingFaceHub,
        draft_imported,
        fetched,
        import_folder,
        importing,
    )
    from nunatak_contract.names import check_task_name
    from nunatak_model import DEFAULT_BACKBONE, load_backbone

    check_task_name(request.task)
    _check_alias(alias)
    backbone = load_backbone(request.backbone or DEFAULT_BACKBONE)
    with fetched(
        request.place, hub=HuggingFaceHub(), revision=request.revision, files=importing.FILES
    ) as there:
        imported = import_folder(
            Checkpoint(there.folder), backbone, kind=request.kind, choices=request.choices
        )
        draft = draft_imported(
            request.task,
            imported,
            backbone,
            origin=there.origin,
            created_at=datetime.now(UTC),
            note=request.note,
            choices=request.choices,
        )
    return _publish(draft, registry, alias, found=imported.source)


def _export_task(
    reference: str, folder: Path, registry: "Registry", *, wanted: ExportFormat, source: str | None
) -> "TaskManifest":
    """Write a version to a folder; `source` names the backbone."""
    with needs_extra("model"):
        from nunatak_artifact import PARAMETERS_ROLE, load_task
        from nunatak_artifact.interchange import (
            export_peft,
            export_transformers,
            write_hub_folder,
        )
        from nunatak_model import DEFAULT_BACKBONE, load_backbone

    manifest = registry.resolve(reference)
    if wanted is ExportFormat.HUB:
        write_hub_folder(manifest, _blobs(registry, manifest), folder)
        return manifest
    backbone = load_backbone(source or DEFAULT_BACKBONE)
    task = load_task(manifest, registry.read_blob(manifest, PARAMETERS_ROLE), backbone)
    match wanted:
        case ExportFormat.TRANSFORMERS:
            export_transformers(task, folder, backbone)
        case ExportFormat.PEFT:
            export_peft(task, folder, backbone)
        case _:
            assert_never(wanted)
    return manifest


def _blobs(registry: "Registry", manifest: "TaskManifest") -> dict[str, bytes]:
    return {blob.role: registry.read_blob(manifest, blob.role) for blob in manifest.blobs}


def _thresholds(given: Iterable[str] | None) -> dict[str, float]:
    """Return the scores of `--threshold`, by label."""
    found = dict[str, float]()
    for label, text in assignments("--threshold", given).items():
        try:
            found[label] = float(text)
        except ValueError:
            raise NunatakError(
                "invalid_option",
                problem=f"--threshold expects a number from 0 to 1 after =, got {text!r}",
            ) from None
    return found


def _check_alias(alias: str | None) -> None:
    """Refuse a malformed alias before the work, not after it."""
    from nunatak_contract.names import check_alias_name

    if alias is not None:
        check_alias_name(alias)


def _publish(
    draft: "VersionDraft", registry: "Registry", alias: str | None, *, found: str
) -> Published:
    known = registry.version_of(draft.manifest)
    manifest = registry.publish(draft.manifest, draft.blobs)
    moved: str | None = None
    if alias is not None:
        move, has_moved = registries.promote(registry, manifest.task, alias, manifest.version)
        moved = registries.moved_line(move, has_moved=has_moved)
    return Published(manifest=manifest, found=found, is_new=manifest.version != known, moved=moved)


def _show(published: Published, *, alias: str | None, as_json: bool) -> None:
    document = _published_json(published, alias=alias)
    print_outcome(document, _published_lines(published), as_json=as_json)


def _published_lines(published: Published) -> Text:
    from nunatak_contract.cards import shared_text

    manifest = published.manifest
    default = manifest.head.default_label
    lines = [
        published.found,
        f"method {manifest.method.text}; shared layers {shared_text(manifest)}",
        registries.published_line(manifest.reference, is_new=published.is_new),
        *([] if default is None else [f"default label {default}"]),
        *([] if published.moved is None else [published.moved]),
    ]
    return Text("\n".join(lines))


def _published_json(published: Published, *, alias: str | None) -> dict[str, JsonValue]:
    manifest = published.manifest
    return {
        "reference": manifest.reference,
        "task": manifest.task,
        "version": manifest.version,
        "is_new": published.is_new,
        "alias": alias,
        "found": published.found,
        "method": manifest.method.kind,
        "split_depth": manifest.split_depth,
        "labels": list(manifest.head.labels),
        "default_label": manifest.head.default_label,
        "thresholds": dict(manifest.head.thresholds),
        "reads": manifest.reads,
        "max_length": manifest.max_length,
        "on_long": manifest.reads_long,
        "note": manifest.note,
    }
