"""Sweeps: many runs from one file, resumable, with tables and plots from their results."""

from nunatak_training.sweeps.grid import Grid, read_grid
from nunatak_training.sweeps.planning import Run, cut_data, plan_runs
from nunatak_training.sweeps.publishing import best_run, publish_best
from nunatak_training.sweeps.reporting import in_order, write_report
from nunatak_training.sweeps.results import Cut, Failed, Finished, ResultsFolder, RunRecord
from nunatak_training.sweeps.running import (
    InProcesses,
    OneByOne,
    RunContext,
    SweepProgress,
    dead_run,
    run_sweep,
)
from nunatak_training.sweeps.tables import Cell, cells_markdown, cells_of, run_text, runs_csv

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
