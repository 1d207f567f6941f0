"""The layout of an index, by the number in its state row.

The number is negative while an upgrade is under way, or after an upgrade that was killed, so that
no release opens the index meanwhile.
"""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, text

from nunatak_registry.errors import StoreUnavailableError
from nunatak_registry.index.schema import SCHEMA_VERSION

# Code before the first release gave out 1 to 5. The first four have no token, and no release may
# give out 5 again.
_TAKEN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLayout:
    number: int
    is_upgrading: bool = False
    """Whether an upgrade to a later layout has begun and has not ended."""

    @property
    def is_current(self) -> bool:
        return self.number == SCHEMA_VERSION and not self.is_upgrading

    def require_current(self) -> None:
        """Raise `StoreUnavailableError` for an index that must not be read."""
        if self.is_upgrading:
            raise StoreUnavailableError(
                f"the index is being upgraded, and has reached layout {self.number} of "
                f"{SCHEMA_VERSION}; wait for the end of `nunatak registry upgrade`, or run it "
                "again if it was killed"
            )
        if not self.is_current:
            raise StoreUnavailableError(
                f"the index has layout {self.number}, and this release reads layout "
                f"{SCHEMA_VERSION}; stop all servers of the older release and run `nunatak "
                "registry upgrade`, or use the release that wrote the index"
            )


def layout_of(connection: Connection) -> IndexLayout:
    """Return the layout of an index that has its tables.

    Raises:
        StoreUnavailableError: this release cannot upgrade from the layout.
    """
    state = connection.execute(text("SELECT * FROM nunatak_state")).mappings().one()
    number = abs(int(state["schema_version"]))
    if "token" not in state or number == _TAKEN:
        raise StoreUnavailableError(
            "the index was made by code from before the first release, and no release reads it; "
            "publish its tasks again, to a new registry"
        )
    if not 1 <= number <= SCHEMA_VERSION:
        raise StoreUnavailableError(
            f"the index has layout {number}, which this release does not know (its own is "
            f"{SCHEMA_VERSION}); use the release that wrote the index, or a later one"
        )
    return IndexLayout(number=number, is_upgrading=state["schema_version"] < 0)
