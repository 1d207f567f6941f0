"""Sweeps: many runs from one file, resumable, with tables and plots from their results."""

from nunatak_training.sweeps.planning import Grid, Run, cut_data, plan_runs, read_grid
from nunatak_training.sweeps.reporting import (
    Cell,
    cells_markdown,
    cells_of,
    in_order,
    run_text,
    runs_csv,
    write_report,
)
from nunatak_training.sweeps.results import Cut, Failed, Finished, ResultsFolder, RunRecord
from nunatak_training.sweeps.running import (
    InProcesses,
    OneByOne,
    RunContext,
    SweepProgress,
    best_run,
    dead_run,
    publish_best,
    run_sweep,
)

__all__ = [
    "Cell",
    "Cut",
    "Failed",
    "Finished",
    "Grid",
    "InProcesses",
    "OneByOne",
    "ResultsFolder",
    "Run",
    "RunContext",
    "RunRecord",
    "SweepProgress",
    "best_run",
    "cells_markdown",
    "cells_of",
    "cut_data",
    "dead_run",
    "in_order",
    "plan_runs",
    "publish_best",
    "read_grid",
    "run_sweep",
    "run_text",
    "runs_csv",
    "write_report",
]
