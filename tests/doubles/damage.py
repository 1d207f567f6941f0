"""Looks into a registry folder, and changes in it, that bypass the registry."""

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
