"""The finished runs in a sweep's results."""

from collections.abc import Sequence

from nunatak_contract.errors import NunatakError
from nunatak_training.sweeps.results import RunRecord
from nunatak_training.sweeps.tables import Cell, cells_of


def finished_cells(records: Sequence[RunRecord]) -> list[Cell]:
    """Return the settings with a finished run, in the order of the records.

    Raises:
        NunatakError: `invalid_sweep`, no run has finished.
    """
    cells = [cell for cell in cells_of(records) if cell.outcomes]
    if not cells:
        raise NunatakError(
            "invalid_sweep",
            where="results",
            problem=f"expected a run that finished, got {len(records)} that failed",
        )
    return cells
