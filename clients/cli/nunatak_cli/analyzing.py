"""From the options of `analyze` to findings in a folder."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import JsonValue

from nunatak_cli.sweeping import SweepRequest, existing_records, grid_of
from nunatak_training.analysis import Findings, save_findings
from nunatak_training.sweeps import Bench, Run, plan_runs

__all__ = ["existing_records", "planned", "saved"]


def planned(
    file: Path,
    *,
    tasks: Sequence[str] | None,
    seed: int | None,
    data_root: Path | None,
    device: str,
) -> tuple[tuple[Run, ...], Bench]:
    """The runs of a sweep file, and the bench that trains them."""
    changes: dict[str, JsonValue] = {}
    if seed is not None:
        changes["seeds"] = [seed]
    if data_root is not None:
        changes["data_root"] = str(data_root)
    grid = grid_of(SweepRequest(file=file, tasks=tuple(tasks or ()), changes=changes))
    bench = Bench(device=device)
    return plan_runs(grid, backbone_of=bench.backbone, data_of=bench.data), bench


def saved(findings: Findings, out: Path) -> str:
    """Write findings; return the table with the paths of the files."""
    paths = save_findings(findings, out)
    return findings.markdown() + "".join(f"{path}\n" for path in paths)
