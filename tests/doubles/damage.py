"""Looks into a registry folder, and changes in it, that bypass the registry; and full disks."""

import resource
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from doubles.golden import engine_of


def blob_paths(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "blobs").rglob("*") if path.is_file())


def write_rows(place: Path | str, statement: str, *values: str) -> None:
    """Run one statement of SQL on the index at a folder or a location."""
    engine = engine_of(str(place))
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql(statement, values or None)
    finally:
        engine.dispose()


@contextmanager
def files_of_at_most(num_bytes: int) -> Generator[None]:
    """Let writes beyond a size fail, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
