"""The location of a registry: a folder, or a database URL that names the root of the blobs."""

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from nunatak_registry.errors import StoreUnavailableError

LOCATION_VARIABLE = "NUNATAK_REGISTRY"

_EXPECTED = (
    "a registry location must be a folder or a database URL such as "
    "postgresql+psycopg://user@host/database?blobs=s3://bucket/prefix"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The index and the blobs of one registry, and the folder to create, if they share one."""

    index_url: URL
    blob_root: str
    folder: Path | None = None

    @property
    def shown(self) -> str:
        """The location for messages: the folder, or the URL without user, password and options."""
        if self.folder is not None:
            return str(self.folder)
        url = self.index_url
        plain = URL.create(url.drivername, host=url.host, port=url.port, database=url.database)
        return plain.render_as_string()


def default_location() -> str:
    """Return the value of NUNATAK_REGISTRY, else a folder in the user's data directory."""
    return os.environ.get(LOCATION_VARIABLE) or str(
        platformdirs.user_data_path("nunatak") / "registry"
    )


def parse_location(location: str | Path) -> Location:
    """Read a folder path or a database URL, without a look at files or network."""
    if isinstance(location, str) and "://" in location:
        return _parse_url(location)
    folder = Path(location).expanduser().absolute()
    return Location(
        index_url=URL.create("sqlite", database=str(folder / "index.sqlite3")),
        blob_root=str(folder / "blobs"),
        folder=folder,
    )


def _parse_url(location: str) -> Location:
    # The URL may hold a password, so no message quotes it.
    try:
        url = make_url(location)
    except (ArgumentError, ValueError) as error:
        raise StoreUnavailableError(f"{_EXPECTED}; got a URL that cannot be read") from error
    blob_root = url.query.get("blobs")
    if not isinstance(blob_root, str) or not blob_root:
        raise StoreUnavailableError(f"{_EXPECTED}; got a URL without one blobs=...")
    return Location(index_url=url.difference_update_query(["blobs"]), blob_root=blob_root)
