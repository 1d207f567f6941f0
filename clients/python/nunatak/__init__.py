"""Nunatak in Python: train tasks, predict in this process, or ask a server.

trained = nunatak.train("tone", texts, labels)
print(trained.predict("Please come at once.").best.label)
"""

from importlib.metadata import version

from nunatak.local import LocalTasks, load
from nunatak.training import Trained, adopt, doubts, train
from nunatak_client import AsyncClient, Client, Parameters, Prediction, Query, Question
from nunatak_contract.errors import NunatakError

__version__ = version("nunatak")

__all__ = [
    "AsyncClient",
    "Client",
    "LocalTasks",
    "NunatakError",
    "Parameters",
    "Prediction",
    "Query",
    "Question",
    "Trained",
    "__version__",
    "adopt",
    "doubts",
    "load",
    "train",
]
