"""Sweeps: many runs from one file, resumable, with tables and plots from their results."""

from nunatak_training.sweeps.cuts import Cut, CutData, cut_data
from nunatak_training.sweeps.grid import Grid
from nunatak_training.sweeps.methods import methods_of
from nunatak_training.sweeps.planning import Run, Source, describe, plan_runs
from nunatak_training.sweeps.progress import SweepProgress
from nunatak_training.sweeps.reading import read_grid
from nunatak_training.sweeps.records import Failed, Finished, RunDescription, RunRecord
from nunatak_training.sweeps.reporting import in_order, write_report
from nunatak_training.sweeps.results import ResultsFolder
from nunatak_training.sweeps.running import Bench
from nunatak_training.sweeps.sweep import Runner, SweepReport, run_sweep
from nunatak_training.sweeps.tables import Cell, cells_markdown, cells_of, runs_csv
from nunatak_training.sweeps.workers import InProcesses, OneByOne

__all__ = [
    "Bench",
    "Cell",
    "Cut",
    "CutData",
    "Failed",
    "Finished",
    "Grid",
    "InProcesses",
    "OneByOne",
    "ResultsFolder",
    "Run",
    "RunDescription",
    "RunRecord",
    "Runner",
    "Source",
    "SweepProgress",
    "SweepReport",
    "cells_markdown",
    "cells_of",
    "cut_data",
    "describe",
    "in_order",
    "methods_of",
    "plan_runs",
    "read_grid",
    "run_sweep",
    "runs_csv",
    "write_report",
]
