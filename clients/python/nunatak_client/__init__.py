"""Client of a Nunatak server, blocking and asyncio; needs httpx and pydantic only.

with Client("http://127.0.0.1:8080") as client:
    print(client.predict("tone", "Please come at once.").best.label)
"""

from nunatak_client.async_client import AsyncClient
from nunatak_client.client import Client
from nunatak_client.errors import (
    ApiError,
    ConflictError,
    ConnectionFailedError,
    DeadlineExceededError,
    InvalidInputError,
    InvalidRequestError,
    InvalidResponseError,
    NotFoundError,
    NunatakClientError,
    OverloadedError,
    UnavailableError,
)
from nunatak_client.payloads import FunctionToApply, Inputs, TextInput
from nunatak_client.results import (
    AliasChange,
    Eviction,
    FanOut,
    MemoryReport,
    Prediction,
    Problem,
    Residency,
    Score,
    Scores,
    ServerInfo,
    TaskDetail,
    TaskResult,
    TaskSummary,
    Timings,
)
from nunatak_client.retries import RetryPolicy

__all__ = [
    "AliasChange",
    "ApiError",
    "AsyncClient",
    "Client",
    "ConflictError",
    "ConnectionFailedError",
    "DeadlineExceededError",
    "Eviction",
    "FanOut",
    "FunctionToApply",
    "Inputs",
    "InvalidInputError",
    "InvalidRequestError",
    "InvalidResponseError",
    "MemoryReport",
    "NotFoundError",
    "NunatakClientError",
    "OverloadedError",
    "Prediction",
    "Problem",
    "Residency",
    "RetryPolicy",
    "Score",
    "Scores",
    "ServerInfo",
    "TaskDetail",
    "TaskResult",
    "TaskSummary",
    "TextInput",
    "Timings",
    "UnavailableError",
]
