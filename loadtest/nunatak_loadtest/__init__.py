"""Load test of a running server: throughput, latencies and memory, through the client alone."""

from nunatak_loadtest.errors import LoadTestError
from nunatak_loadtest.report import LoadReport, render
from nunatak_loadtest.runner import run
from nunatak_loadtest.settings import LoadTestSettings, UserSettings

__all__ = [
    "LoadReport",
    "LoadTestError",
    "LoadTestSettings",
    "UserSettings",
    "render",
    "run",
]
