"""Load test of a running server: throughput, latencies and memory, through the client alone."""

from nunatak_loadtest.errors import LoadTestError
from nunatak_loadtest.job import Job
from nunatak_loadtest.jobs import changed_scenario, make_job
from nunatak_loadtest.locust_process import serve_locust
from nunatak_loadtest.report import LoadReport
from nunatak_loadtest.runner import run
from nunatak_loadtest.scenario import Scenario
from nunatak_loadtest.scenario_files import load_scenario, scenario_names
from nunatak_loadtest.tables import render

__all__ = [
    "Job",
    "LoadReport",
    "LoadTestError",
    "Scenario",
    "changed_scenario",
    "load_scenario",
    "make_job",
    "render",
    "run",
    "scenario_names",
    "serve_locust",
]
