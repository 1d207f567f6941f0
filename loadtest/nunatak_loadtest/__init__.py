"""Load test of a running server: throughput, latencies and memory, through the client alone."""

from nunatak_loadtest.report import Job, LoadReport, check_unwritten, save_run
from nunatak_loadtest.runner import make_job, run
from nunatak_loadtest.scenario import Scenario, load_scenario, scenario_names
from nunatak_loadtest.tables import render

__all__ = [
    "Job",
    "LoadReport",
    "Scenario",
    "check_unwritten",
    "load_scenario",
    "make_job",
    "render",
    "run",
    "save_run",
    "scenario_names",
]
