"""Opens the registry that the options name."""

# ruff: noqa: PLC0415 - the registry imports a database library, which --help does not need

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nunatak_contract.errors import NunatakError

if TYPE_CHECKING:
    from nunatak_registry import Registry


@contextmanager
def existing_registry(location: str | None) -> Generator["Registry"]:
    """Open a registry that exists: a mistyped path must not become a new, empty registry.

    Raises:
        NunatakError: `registry_missing`, there is no such folder.
    """
    from nunatak_registry import Registry

    place = existing_location(location)
    with Registry.open(place) as registry:
        yield registry


@contextmanager
def created_registry(location: str | None) -> Generator["Registry"]:
    """Open a registry to publish to; create it if it does not exist."""
    from nunatak_registry import Registry

    with Registry.open(registry_location(location)) as registry:
        yield registry


def existing_location(location: str | None) -> str:
    """Return the place of a registry, and check that a folder exists.

    Raises:
        NunatakError: `registry_missing`, there is no such folder.
    """
    place = registry_location(location)
    if "://" not in place and not Path(place).expanduser().is_dir():
        raise NunatakError("registry_missing", location=place)
    return place


def registry_location(location: str | None) -> str:
    """Return the given place, or the default one."""
    from nunatak_registry import default_location

    return location or default_location()
