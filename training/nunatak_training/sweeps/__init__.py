"""Sweeps: many runs from one file, resumable, with tables and plots from their results."""

from nunatak_training.sweeps.grid import Grid, methods_of, read_grid
from nunatak_training.sweeps.planning import (
    CutData,
    Run,
    cut_data,
    describe,
    plan_runs,
)
from nunatak_training.sweeps.publishing import PublishedBest, best_run, publish_best
from nunatak_training.sweeps.reporting import in_order, write_report
from nunatak_training.sweeps.results import (
    Cut,
    Failed,
    Finished,
    ResultsFolder,
    RunDescription,
    RunOrigin,
    RunRecord,
    Source,
)
from nunatak_training.sweeps.running import (
    InProcesses,
    OneByOne,
    RunContext,
    Runner,
    SweepProgress,
    SweepReport,
    dead_run,
    run_sweep,
)
from nunatak_training.sweeps.tables import Cell, cells_markdown, cells_of, run_text, runs_csv

__all__ = [
    "Cell",
    "Cut",
    "CutData",
    "Failed",
    "Finished",
    "Grid",
    "InProcesses",
    "OneByOne",
    "PublishedBest",
    "ResultsFolder",
    "Run",
    "RunContext",
    "RunDescription",
    "RunOrigin",
    "RunRecord",
    "Runner",
    "Source",
    "SweepProgress",
    "SweepReport",
    "best_run",
    "cells_markdown",
    "cells_of",
    "cut_data",
    "dead_run",
    "describe",
    "in_order",
    "methods_of",
    "plan_runs",
    "publish_best",
    "read_grid",
    "run_sweep",
    "run_text",
    "runs_csv",
    "write_report",
]
