"""Looks into a registry folder, and changes in it, that bypass the registry."""

import sqlite3
from pathlib import Path


def blob_paths(folder: Path) -> list[Path]:
    """Return every file among the blobs."""
    return sorted(path for path in (folder / "blobs").rglob("*") if path.is_file())


def write_rows(folder: Path, statement: str, *values: str) -> None:
    """Run one statement of SQL on the index."""
    connection = sqlite3.connect(folder / "index.sqlite3")
    with connection:
        connection.execute(statement, values)
    connection.close()
