"""The findings of an analysis, a table and a drawing, and the finished runs that it is about."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from nunatak_contract.cards import markdown_table
from nunatak_contract.errors import NunatakError
from nunatak_training.sweeps.reporting import Cell, cells_of
from nunatak_training.sweeps.results import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """One table with a column for each name of the header, and its drawing."""

    name: str
    header: tuple[str, ...]
    rows: tuple[tuple[str | float, ...], ...]
    drawing: Figure

    def markdown(self) -> str:
        """The table in Markdown, with four digits per number."""
        return markdown_table(self.header, [[_shown(cell) for cell in row] for row in self.rows])


def save_findings(findings: Findings, folder: Path) -> tuple[Path, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = tuple(folder / f"{findings.name}.{suffix}" for suffix in ("csv", "md", "png"))
    table, page, drawing = paths
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([findings.header, *findings.rows])
    page.write_text(findings.markdown(), encoding="utf-8")
    findings.drawing.savefig(drawing, dpi=120)
    return paths


def _shown(cell: str | float) -> str:
    return cell if isinstance(cell, str) else f"{cell:.4g}"


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
