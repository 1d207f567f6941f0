"""Opening the registry that the options mean."""

# ruff: noqa: PLC0415 - the registry brings its database library, which --help must not wait for

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nunatak_cli.errors import RegistryMissingError

if TYPE_CHECKING:
    from nunatak_registry import Registry


@contextmanager
def existing_registry(location: str | None) -> Generator["Registry"]:
    """Open a registry to work on what it holds; a folder must exist.

    Raises:
        RegistryMissingError: there is no such folder. A mistyped path must not become an empty
            registry that answers "no tasks".
    """
    from nunatak_registry import Registry

    place = existing_location(location)
    with Registry.open(place) as registry:
        yield registry


@contextmanager
def created_registry(location: str | None) -> Generator["Registry"]:
    """Open a registry to publish to, creating it where there is none."""
    from nunatak_registry import Registry

    with Registry.open(registry_location(location)) as registry:
        yield registry


def existing_location(location: str | None) -> str:
    """Return the place of a registry that is there.

    Raises:
        RegistryMissingError: there is no such folder.
    """
    place = registry_location(location)
    if "://" not in place and not Path(place).expanduser().is_dir():
        raise RegistryMissingError(place)
    return place


def registry_location(location: str | None) -> str:
    """Return the given place, or the default one."""
    from nunatak_registry import default_location

    return location or default_location()
