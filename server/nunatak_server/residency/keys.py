"""Keys: what a version is known by in memory."""

from nunatak_registry import TaskManifest

VersionKey = tuple[str, int]


def key_of(manifest: TaskManifest) -> VersionKey:
    """Return the key of a version."""
    return manifest.task, manifest.version
