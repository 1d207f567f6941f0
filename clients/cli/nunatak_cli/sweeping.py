"""From the options of `sweep` to results and their report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from nunatak_training import InvalidSweepError
from nunatak_training.settings import overlaid
from nunatak_training.sweeps import (
    Failed,
    Grid,
    InProcesses,
    OneByOne,
    ResultsFolder,
    RunContext,
    RunRecord,
    SweepProgress,
    cells_markdown,
    cells_of,
    in_order,
    plan_runs,
    read_grid,
    run_sweep,
    write_report,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """Which runs were asked for; `changes` holds only the axes that were given."""

    file: Path | None
    tasks: tuple[str, ...] = ()
    """Names of the file's, or `name=path`."""
    settings: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """Of the recipe of all runs, by name, whatever else names them."""
    changes: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    """How they are to be done."""

    results: Path
    jobs: int
    device: str
    retry_failed: bool


def sweep_through(request: SweepRequest, settings: SweepSettings) -> tuple[RunRecord, ...]:
    """Do the runs that have no result yet; return the records of all."""
    grid = grid_of(request)
    context = RunContext(device=settings.device)
    runs = plan_runs(grid, backbone_of=context.backbone, data_of=context.data)
    results = ResultsFolder(settings.results)
    if settings.retry_failed:
        results.drop_failures()
    runner = (
        OneByOne(context)
        if settings.jobs == 1
        else InProcesses(jobs=settings.jobs, device=settings.device)
    )
    return run_sweep(runs, results, runner, SweepProgress(grid.name))


def grid_of(request: SweepRequest) -> Grid:
    """Read the sweep file and put what the options say in its place.

    Raises:
        InvalidSweepError: they do not make a sweep.
    """
    changes = dict(request.changes)
    named = [name for name in request.tasks if "=" in name]
    if named:
        changes["tasks"] = [
            {"name": name, "data": path} for name, _, path in (it.partition("=") for it in named)
        ]
    grid = read_grid(request.file, changes)
    overrides = overlaid(grid.overrides, request.settings)
    grid = grid.model_copy(update={"overrides": overrides})
    return _only(grid, frozenset(request.tasks) - set(named))


def _only(grid: Grid, names: frozenset[str]) -> Grid:
    if not names:
        return grid
    unknown = names - {task.name for task in grid.tasks}
    if unknown:
        known = ", ".join(task.name for task in grid.tasks)
        raise InvalidSweepError("--task", f"expected one of {known}, got {min(unknown)!r}")
    kept = tuple(task for task in grid.tasks if task.name in names)
    return grid.model_copy(update={"tasks": kept})


def sweep_failures(records: Sequence[RunRecord]) -> int:
    """How many runs failed."""
    return sum(isinstance(record.outcome, Failed) for record in records)


def sweep_table(results: Path) -> str:
    """The table of a results folder."""
    return cells_markdown(cells_of(in_order(existing_records(results))))


def write_sweep_report(results: Path, out: Path) -> tuple[Path, ...]:
    """Write tables and plots of a results folder."""
    return write_report(existing_records(results), out)


def existing_records(results: Path) -> tuple[RunRecord, ...]:
    """Read a results folder.

    Raises:
        InvalidSweepError: it holds no result.
    """
    records = ResultsFolder(results).records()
    if not records:
        raise InvalidSweepError(str(results), "expected a folder with results of a sweep")
    return records
