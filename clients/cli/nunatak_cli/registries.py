"""Opens the registry that the options name."""

# ruff: noqa: PLC0415 - the registry imports a database library, which --help does not need

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nunatak_registry import Registry


@contextmanager
def existing_registry(location: str | None) -> Generator["Registry"]:
    """Open a registry that exists: a mistyped path must not become a new, empty registry.

    Raises:
        NunatakError: `registry_missing`, there is no such folder.
    """
    from nunatak_registry import Registry, existing_location

    with Registry.open(existing_location(location)) as registry:
        yield registry


@contextmanager
def created_registry(location: str | None) -> Generator["Registry"]:
    """Open a registry to publish to; create it if it does not exist."""
    from nunatak_registry import Registry, default_location

    with Registry.open(location or default_location()) as registry:
        yield registry
