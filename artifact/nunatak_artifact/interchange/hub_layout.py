"""A task version as a folder or a repository of the hub.

manifest.json             as the registry holds it
parameters.safetensors    one file a blob, named by its role
README.md                 the task card
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from nunatak_artifact.drafting import PARAMETERS_ROLE, Draft
from nunatak_artifact.errors import CorruptFileError, InvalidFolderError
from nunatak_artifact.interchange.adapter_folder import read_bytes, read_model
from nunatak_artifact.interchange.hub_card import hub_card
from nunatak_artifact.interchange.new_folder import new_folder
from nunatak_artifact.loading import load_task
from nunatak_model import Backbone
from nunatak_registry import BlobRecord, TaskDraft, TaskManifest, check_task_name

MANIFEST, README = "manifest.json", "README.md"
FILES = (MANIFEST, README, "*.safetensors")
MAX_NOTE_CHARS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class HubTask:
    """What such a folder holds; its bytes are those that the manifest names."""

    manifest: TaskManifest
    blobs: Mapping[str, bytes]


def write_hub_folder(
    manifest: TaskManifest, blobs: Mapping[str, bytes], folder: Path, *, source: str | None = None
) -> None:
    """Write a version; `source` is the repository that the folder will become, if any.

    Raises:
        FolderInUseError: the folder holds something already.
    """
    with new_folder(folder) as made:
        (made / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
        (made / README).write_text(hub_card(manifest, source=source), encoding="utf-8")
        for role, data in blobs.items():
            (made / _file(role)).write_bytes(data)


def read_hub_folder(folder: Path) -> HubTask:
    """Read a version and check that every byte is the one its publisher stored.

    Raises:
        InvalidFolderError: a file is missing, malformed, or not the one that the manifest names.
    """
    manifest = read_model(folder, MANIFEST, TaskManifest)
    return HubTask(
        manifest=manifest, blobs={blob.role: _blob(folder, blob) for blob in manifest.blobs}
    )


def draft_pulled(found: HubTask, backbone: Backbone, *, task: str | None, origin: str) -> Draft:
    """Describe a foreign version as one to publish here, after proving that it answers right.

    Args:
        found: what the folder holds.
        backbone: must be the one it was trained on.
        task: its name here; None: the name it has there.
        origin: where it is from, for the note.

    Raises:
        ArtifactError: backbone or tokenizer are others, it changes nothing, or fails its probe.
        ModelError: its tensors do not fit.
        InvalidFolderError: the version has no parameters.
        InvalidNameError: `task` is no name of a task.
    """
    there = found.manifest
    name = check_task_name(task or there.task)
    data = found.blobs.get(PARAMETERS_ROLE)
    if data is None:
        raise InvalidFolderError(origin, f"it has no blob {PARAMETERS_ROLE!r}")
    load_task(there, data, backbone)
    note = f"pulled from {origin}, where it was {there.reference}"
    fields = there.model_dump(include=set(TaskDraft.model_fields))
    draft = TaskDraft.model_validate(
        {
            **fields,
            "task": name,
            "note": "; ".join(filter(None, (note, there.note)))[:MAX_NOTE_CHARS],
        }
    )
    return Draft(manifest=draft, blobs=found.blobs)


def _blob(folder: Path, blob: BlobRecord) -> bytes:
    name = _file(blob.role)
    data = read_bytes(folder, name, limit=blob.size_bytes)
    if (digest := sha256(data).hexdigest()) != blob.sha256:
        raise CorruptFileError(
            folder.name, name, f"must have SHA-256 {blob.sha256}, it has {digest}"
        )
    return data


def _file(role: str) -> str:
    return f"{role}.safetensors"
