"""One process that upgrades a registry; it imports nothing that takes long."""

from multiprocessing.connection import Connection
from pathlib import Path

from nunatak_registry.index.upgrade import upgrade


def run(location: str, folder: str, begins: Connection) -> None:
    """Say that the work begins, and upgrade the registry."""
    begins.send(None)
    upgrade(location, folder=Path(folder), tell=lambda _line: None)
