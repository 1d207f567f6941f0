"""Keys: what a version is known by in memory."""

from typing import NamedTuple

from nunatak_registry import TaskManifest


class VersionKey(NamedTuple):
    """A version and its content: a registry that was restored may give a number out once more."""

    task: str
    version: int
    content: str
    """The content digest."""


def key_of(manifest: TaskManifest) -> VersionKey:
    """Return the key of a version."""
    return VersionKey(manifest.task, manifest.version, manifest.content)
