"""The layouts of an index: which one it has, and which ones this release knows.

The state row holds the number of the layout. The number is negative while an upgrade is under way,
or after an upgrade that was killed, so that no release opens the index meanwhile. Numbers 1 to 5
were given out twice. The first five are called `early_1` to `early_5`; columns tell them apart.
"""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, text

from nunatak_registry.errors import StoreUnavailableError
from nunatak_registry.index.schema import SCHEMA_VERSION

NUM_EARLY: Final = 5
LAYOUTS: Final = (
    *(f"early_{number}" for number in range(1, NUM_EARLY + 1)),
    *(str(number) for number in range(1, SCHEMA_VERSION + 1)),
)
"""Oldest first; the last is the layout of this release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLayout:
    name: str
    is_upgrading: bool = False
    """Whether an upgrade to a later layout has begun and has not ended."""

    @property
    def number(self) -> int:
        """The number in the state row."""
        number = int(self.name.removeprefix("early_"))
        return -number if self.is_upgrading else number

    @property
    def is_current(self) -> bool:
        return self == IndexLayout(name=LAYOUTS[-1])

    def require_known(self) -> None:
        """Raise `StoreUnavailableError` for a layout from which this release cannot upgrade."""
        if self.name not in LAYOUTS:
            raise StoreUnavailableError(
                f"the index has layout {self.name}, which this release does not know (its own is "
                f"{LAYOUTS[-1]}); use the release that wrote the index, or a later one"
            )

    def require_current(self) -> None:
        """Raise `StoreUnavailableError` for an index that must not be read."""
        self.require_known()
        if self.is_upgrading:
            raise StoreUnavailableError(
                f"the index is being upgraded, and has reached layout {self.name} of "
                f"{LAYOUTS[-1]}; wait for the end of `nunatak registry upgrade`, or run it again "
                "if it was killed"
            )
        if not self.is_current:
            raise StoreUnavailableError(
                f"the index has layout {self.name}, and this release reads layout {LAYOUTS[-1]}; "
                "stop all servers of the older release and run `nunatak registry upgrade`, or use "
                "the release that wrote the index"
            )


def layout_of(connection: Connection) -> IndexLayout:
    """Return the layout of an index that has its tables."""
    state = connection.execute(text("SELECT * FROM nunatak_state")).mappings().one()
    number = int(state["schema_version"])
    is_early = "token" not in state
    if abs(number) == NUM_EARLY and not is_early:
        moves = connection.execute(text("SELECT * FROM nunatak_alias_events LIMIT 0"))
        is_early = "by" not in moves.keys()  # noqa: SIM118 - rows of a result have no keys
    return IndexLayout(
        name=f"early_{abs(number)}" if is_early else str(abs(number)), is_upgrading=number < 0
    )
