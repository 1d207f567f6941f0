"""Task versions on the Hugging Face hub, or in a local folder of the same layout.

manifest.json             the manifest as the registry stores it
parameters.safetensors    one file per blob, named by the blob's role
README.md                 the task card, below the fields that the hub reads

A *place* is a local folder or a hub repository. `push` and `fetched` accept both.
"""

import shutil
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from nunatak_contract.cards import task_card
from nunatak_contract.enums import HeadKind
from nunatak_contract.errors import NunatakError, invalid_option
from nunatak_contract.manifest import MAX_NOTE_CHARS, BlobRecord, TaskDraft, TaskManifest
from nunatak_contract.names import check_task_name
from nunatak_contract.plain_text import visible_lines
from nunatak_exchange.checkpoint import Checkpoint, new_folder
from nunatak_model import Backbone
from nunatak_versions.versions import PARAMETERS_ROLE, VersionDraft, load_task

LIBRARY = "nunatak"
MANIFEST, README = "manifest.json", "README.md"
FILES = (MANIFEST, README, "*.safetensors")
PIPELINE_TAGS: Mapping[HeadKind, str] = {
    HeadKind.SEQUENCE_CLASSIFICATION: "text-classification",
    HeadKind.TOKEN_CLASSIFICATION: "token-classification",
    HeadKind.QUESTION_ANSWERING: "question-answering",
    HeadKind.RANKING: "text-ranking",
}
"""The hub's names for kinds of heads."""


def hub_card(manifest: TaskManifest, *, source: str | None) -> str:
    """Write the README of a version; `source` is the version's future repository, if any."""
    # This import loads an HTTP client and YAML, which no other function needs.
    from huggingface_hub import EvalResult, ModelCardData  # noqa: PLC0415 - as above

    tag, name = PIPELINE_TAGS[manifest.head.kind], manifest.backbone.name
    # A converted version was scored on other examples than those of its training.
    scored, known = {it.data_digest for it in manifest.metrics}, manifest.data
    is_dev = known is not None and scored == {known.dev_digest}
    data = known.name if known is not None and is_dev else "labelled examples"
    fields = ModelCardData(
        model_name=manifest.task,
        library_name=LIBRARY,
        pipeline_tag=tag,
        tags=[LIBRARY, manifest.method.kind.value],
        # The hub allows only its own ids in this field; a folder's name is none.
        base_model=name if name.count("/") == 1 else None,
        metrics=[metric.name for metric in manifest.metrics] or None,
        eval_results=[
            EvalResult(
                task_type=tag,
                dataset_type=data,
                dataset_name=data,
                dataset_split="dev" if is_dev else None,
                metric_type=metric.name,
                metric_value=metric.value,
            )
            for metric in manifest.metrics
        ]
        or None,
    )
    yaml = fields.to_yaml()
    return visible_lines(f"---\n{yaml}\n---\n\n{task_card(manifest, source=source)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubTask:
    """The content of a task folder. All bytes match the digests in the manifest."""

    manifest: TaskManifest
    blobs: Mapping[str, bytes]


def write_hub_folder(
    manifest: TaskManifest, blobs: Mapping[str, bytes], folder: Path, *, source: str | None = None
) -> None:
    """Write a version; `source` is the repository that the folder will become, if any."""
    with new_folder(folder) as made:
        (made / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
        (made / README).write_text(hub_card(manifest, source=source), encoding="utf-8")
        for role, data in blobs.items():
            (made / _file(role)).write_bytes(data)


def read_hub_folder(folder: Path) -> HubTask:
    """Read a version and check that every byte is as its publisher stored it."""
    checkpoint = Checkpoint(folder)
    manifest = checkpoint.parsed(MANIFEST, TaskManifest)
    return HubTask(
        manifest=manifest, blobs={blob.role: _blob(checkpoint, blob) for blob in manifest.blobs}
    )


def draft_pulled(
    found: HubTask, backbone: Backbone, *, task: str | None, origin: str
) -> VersionDraft:
    """Load a foreign version, which proves it by its probe, and describe it for publication."""
    there = found.manifest
    name = check_task_name(task or there.task)
    data = found.blobs.get(PARAMETERS_ROLE)
    if data is None:
        raise NunatakError(
            "invalid_folder", folder=origin, reason=f"it has no blob {PARAMETERS_ROLE!r}"
        )
    load_task(there, data, backbone)
    note = f"pulled from {origin}, where it was {there.reference}"
    fields = there.model_dump(include=set(TaskDraft.model_fields))
    fields |= {"task": name, "note": "; ".join(filter(None, (note, there.note)))[:MAX_NOTE_CHARS]}
    return VersionDraft(manifest=TaskDraft.model_validate(fields), blobs=found.blobs)


def _blob(checkpoint: Checkpoint, blob: BlobRecord) -> bytes:
    name = _file(blob.role)
    data = checkpoint.read_once(name, limit=blob.size_bytes)
    if (digest := sha256(data).hexdigest()) != blob.sha256:
        raise checkpoint.corrupt(name, f"must have SHA-256 {blob.sha256}, it has {digest}")
    return data


def _file(role: str) -> str:
    return f"{role}.safetensors"


def upload(repository: str, folder: Path, *, message: str, private: bool) -> str:
    """Add a commit; return the repository's address. `private` counts for a new repository.

    The hub has the token of `hf auth login` or HF_TOKEN, and the address HF_ENDPOINT.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415 - slow to import, and rarely needed

    api = HfApi()
    with _hub_errors(repository, "push to"):
        url = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
    return str(url)


def download(repository: str, folder: Path, *, revision: str | None, files: Sequence[str]) -> str:
    """Copy the files that match these patterns into a folder; return the commit's id.

    With HF_HUB_OFFLINE, the files come from the hub's cache.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415 - slow to import, and rarely needed
    from huggingface_hub.constants import is_offline_mode  # noqa: PLC0415

    if is_offline_mode():
        return _copy_cached(repository, folder, revision=revision, files=files)
    api = HfApi()
    commit = api.model_info(repository, revision=revision).sha
    # Real files are written, because links into a cache would lead out of the folder.
    api.snapshot_download(repository, revision=commit, local_dir=folder, allow_patterns=list(files))
    return str(commit)


def _copy_cached(
    repository: str, folder: Path, *, revision: str | None, files: Sequence[str]
) -> str:
    from huggingface_hub import HfApi  # noqa: PLC0415 - slow to import, and rarely needed
    from huggingface_hub.errors import LocalEntryNotFoundError  # noqa: PLC0415
    from huggingface_hub.utils import filter_repo_objects  # noqa: PLC0415

    try:
        found = Path(
            HfApi().snapshot_download(repository, revision=revision, local_files_only=True)
        )
    except LocalEntryNotFoundError:
        problem = "HF_HUB_OFFLINE is set, and the cache (HF_HUB_CACHE) has no such revision"
        raise OSError(problem) from None
    there = (it.relative_to(found).as_posix() for it in found.rglob("*") if it.is_file())
    for name in filter_repo_objects(there, allow_patterns=list(files)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(found / name, folder / name)
    return found.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    folder: Path
    origin: str


def is_folder(place: str) -> bool:
    """Whether a place is a folder: one that exists, or a path such as `./x`, `/x` or `~/x`."""
    return place.startswith((".", "/", "~")) or Path(place).is_dir()


def push(manifest: TaskManifest, blobs: Mapping[str, bytes], place: str, *, private: bool) -> str:
    """Write a version to a place in the hub's layout; return its address."""
    if is_folder(place):
        folder = Path(place).expanduser()
        write_hub_folder(manifest, blobs, folder)
        return str(folder)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "task"
        write_hub_folder(manifest, blobs, folder, source=place)
        return upload(place, folder, message=f"Push {manifest.reference}", private=private)


@contextmanager
def fetched(place: str, *, revision: str | None, files: Sequence[str]) -> Generator[Fetched]:
    """Yield the files of a place for reading; downloaded files are removed afterwards."""
    if is_folder(place):
        folder = Path(place).expanduser()
        if not folder.is_dir():
            raise NunatakError("invalid_folder", folder=place, reason="there is no such folder")
        if revision is not None:
            raise invalid_option(f"{place} is a folder here, without revisions; give no revision")
        yield Fetched(folder=folder, origin=folder.resolve().name)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / place.rpartition("/")[2]
        both = "there is no such folder here, and the hub gives none ({})"
        with _hub_errors(place, "pull from", both):
            commit = download(place, folder, revision=revision, files=files)
        yield Fetched(folder=folder, origin=f"{place}@{commit}")


@contextmanager
def _hub_errors(repository: str, action: str, told: str = "{}") -> Generator[None]:
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # noqa: PLC0415 - slow to import, and rarely needed

    try:
        yield
    except (HfHubHTTPError, HTTPError, OSError, ValueError) as error:
        reason = told.format(str(error).strip().partition("\n")[0] or type(error).__name__)
        raise NunatakError(
            "hub_unavailable", repository=repository, action=action, reason=reason
        ) from error
