"""Folders here and repositories on the Hugging Face hub, called alike: places."""

import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nunatak_artifact.errors import HubUnavailableError, InvalidFolderError
from nunatak_artifact.interchange.hub_layout import write_hub_folder
from nunatak_registry import TaskManifest


class Hub(Protocol):
    """Stores repositories of files."""

    def upload(self, repository: str, folder: Path, *, message: str, private: bool) -> str:
        """Add a commit with the files of a folder; return the address of the repository.

        The repository is created if there is none; only then does `private` matter.

        Raises:
            HubUnavailableError: the hub refuses, or cannot be reached.
        """
        ...

    def download(
        self, repository: str, folder: Path, *, revision: str | None, files: Sequence[str]
    ) -> str:
        """Copy the files that match these patterns into a folder; return the commit's id.

        Raises:
            HubUnavailableError: there is no such repository or revision, or no way to it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceHub:
    """The hub itself; with the token that `hf auth login` or HF_TOKEN has left."""

    endpoint: str | None = None
    """None: the public hub, or HF_ENDPOINT."""

    def upload(self, repository: str, folder: Path, *, message: str, private: bool) -> str:
        """Add a commit with the files of a folder."""
        from huggingface_hub import HfApi  # noqa: PLC0415 - slow to import, and seldom needed

        api = HfApi(endpoint=self.endpoint)
        with _hub_errors(repository, "push to"):
            url = api.create_repo(repository, private=private, exist_ok=True)
            api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
        return str(url)

    def download(
        self, repository: str, folder: Path, *, revision: str | None, files: Sequence[str]
    ) -> str:
        """Copy files of one commit into a folder."""
        from huggingface_hub import HfApi  # noqa: PLC0415 - slow to import, and seldom needed

        api = HfApi(endpoint=self.endpoint)
        with _hub_errors(repository, "pull from"):
            commit = api.model_info(repository, revision=revision).sha
            # Real files: links into a cache would lead out of the folder.
            api.snapshot_download(  # pyright: ignore[reportUnknownMemberType] - one part is untyped
                repository, revision=commit, local_dir=folder, allow_patterns=list(files)
            )
        return str(commit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Files to read, and where they are from."""

    folder: Path
    origin: str
    """The name of the folder, or the repository with its commit."""


def is_folder(place: str) -> bool:
    """Whether a place means a folder: there is one, or it is spelt as a path (`./x`, `/x`, `~/x`).

    Anything else is a repository on the hub.
    """
    return place.startswith((".", "/", "~")) or Path(place).is_dir()


def push(
    manifest: TaskManifest, blobs: Mapping[str, bytes], place: str, *, hub: Hub, private: bool
) -> str:
    """Write a version to a place in the hub's layout; return where it is now.

    Raises:
        FolderInUseError: the folder holds something already.
        HubUnavailableError: the hub does not take it.
    """
    if is_folder(place):
        folder = Path(place).expanduser()
        write_hub_folder(manifest, blobs, folder)
        return str(folder)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "task"
        write_hub_folder(manifest, blobs, folder, source=place)
        return hub.upload(place, folder, message=f"Push {manifest.reference}", private=private)


@contextmanager
def fetched(
    place: str, *, hub: Hub, revision: str | None, files: Sequence[str]
) -> Generator[Fetched]:
    """Yield the files of a place for reading; downloaded ones are gone afterwards.

    Raises:
        InvalidFolderError: there is no such folder.
        HubUnavailableError: the hub does not give them.
    """
    if is_folder(place):
        folder = Path(place).expanduser()
        if not folder.is_dir():
            raise InvalidFolderError(place, "there is no such folder")
        yield Fetched(folder=folder, origin=folder.resolve().name)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / place.rpartition("/")[2]
        try:
            commit = hub.download(place, folder, revision=revision, files=files)
        except HubUnavailableError as error:
            both = f"there is no such folder here, and the hub gave nothing ({error.reason})"
            raise HubUnavailableError(place, error.action, both) from error
        yield Fetched(folder=folder, origin=f"{place}@{commit}")


@contextmanager
def _hub_errors(repository: str, action: str) -> Generator[None]:
    from huggingface_hub.errors import (  # noqa: PLC0415 - slow to import, and seldom needed
        HfHubHTTPError,
        HTTPError,  # pyright: ignore[reportPrivateImportUsage] - of whichever library it uses
    )

    try:
        yield
    except (HfHubHTTPError, HTTPError, OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise HubUnavailableError(repository, action, reason) from error
