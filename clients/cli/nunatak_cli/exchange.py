"""Versions in from other places, and out to them."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import assert_never

from nunatak_artifact import PARAMETERS_ROLE, Draft, LoadedTask, load_task
from nunatak_artifact.interchange import (
    ForeignKind,
    HuggingFaceHub,
    ImportChoices,
    draft_imported,
    draft_pulled,
    export_peft,
    export_transformers,
    fetched,
    hub,
    import_folder,
    importing,
    push,
    read_hub_folder,
    write_hub_folder,
)
from nunatak_cli.options import ExportFormat, ImportFormat
from nunatak_contract.enums import OnLong
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import check_alias_name, check_task_name
from nunatak_model import DEFAULT_BACKBONE, Backbone, load_backbone
from nunatak_registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """What is to be imported, and as what."""

    place: str
    revision: str | None
    task: str
    kind: ImportFormat
    choices: ImportChoices
    backbone: str | None
    note: str
    default_label: str | None = None
    on_long: OnLong | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A version that came from elsewhere, and what was found there."""

    manifest: TaskManifest
    found: str


def import_task(request: ImportRequest, registry: Registry, *, alias: str | None) -> Published:
    """Import a foreign folder, publish it, and point `alias` at it, if there is one."""
    check_task_name(request.task)
    _check_alias(alias)
    backbone = load_backbone(request.backbone or DEFAULT_BACKBONE)
    kind = None if request.kind is ImportFormat.AUTO else ForeignKind(request.kind.value)
    with fetched(
        request.place, hub=HuggingFaceHub(), revision=request.revision, files=importing.FILES
    ) as there:
        imported = import_folder(there.folder, backbone, kind=kind, choices=request.choices)
        draft = draft_imported(
            request.task,
            imported,
            backbone,
            origin=there.origin,
            created_at=datetime.now(UTC),
            note=request.note,
            default_label=request.default_label,
            on_long=request.on_long,
        )
    return Published(manifest=_publish(draft, registry, alias), found=imported.source)


def pull_task(
    place: str,
    registry: Registry,
    *,
    revision: str | None,
    task: str | None,
    backbone: str | None,
    alias: str | None,
) -> Published:
    """Publish a version that was pushed to a place, and point `alias` at it, if there is one."""
    _check_alias(alias)
    with fetched(place, hub=HuggingFaceHub(), revision=revision, files=hub.FILES) as there:
        found = read_hub_folder(there.folder)
        loaded = load_backbone(backbone or DEFAULT_BACKBONE)
        draft = draft_pulled(found, loaded, task=task, origin=there.origin)
    return Published(
        manifest=_publish(draft, registry, alias), found=f"{found.manifest.reference} there"
    )


def push_task(
    reference: str, place: str, registry: Registry, *, private: bool
) -> tuple[TaskManifest, str]:
    """Write a version to a folder or to the hub; return it, and where it is now."""
    manifest = registry.resolve(reference)
    blobs = _blobs(registry, manifest)
    return manifest, push(manifest, blobs, place, hub=HuggingFaceHub(), private=private)


def export_task(
    reference: str, folder: Path, registry: Registry, *, wanted: ExportFormat, source: str | None
) -> TaskManifest:
    """Write a version to a folder that other programs read."""
    manifest = registry.resolve(reference)
    match wanted:
        case ExportFormat.HUB:
            write_hub_folder(manifest, _blobs(registry, manifest), folder)
        case ExportFormat.TRANSFORMERS:
            task, backbone = _loaded(manifest, registry, source)
            export_transformers(task, folder, backbone)
        case ExportFormat.PEFT:
            task, backbone = _loaded(manifest, registry, source)
            export_peft(task, folder, backbone)
        case _:
            assert_never(wanted)
    return manifest


def _loaded(
    manifest: TaskManifest, registry: Registry, source: str | None
) -> tuple[LoadedTask, Backbone]:
    backbone = load_backbone(source or DEFAULT_BACKBONE)
    return load_task(manifest, registry.read_blob(manifest, PARAMETERS_ROLE), backbone), backbone


def _blobs(registry: Registry, manifest: TaskManifest) -> dict[str, bytes]:
    return {blob.role: registry.read_blob(manifest, blob.role) for blob in manifest.blobs}


def _publish(draft: Draft, registry: Registry, alias: str | None) -> TaskManifest:
    manifest = registry.publish(draft.manifest, draft.blobs)
    if alias is not None:
        registry.promote(manifest.task, alias, manifest.version)
    return manifest


def _check_alias(alias: str | None) -> None:
    if alias is not None:
        check_alias_name(alias)  # a slip must not show only when all the work is done
