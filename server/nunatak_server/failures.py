"""Failures of the device, and time limits that fail as callers choose.

Separate from `errors.py`, which must stay light: this module loads torch.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import torch

from nunatak_server.errors import EngineFailedError, OutOfMemoryError

LIBRARY_FAILURE: Final = re.compile(
    r"(?:CUDA|cuDNN) error: (\w+_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR))"
)
"""Messages of cuBLAS and cuDNN for a failed device. Other statuses concern shapes or memory."""
NO_DEVICE_MEMORY: Final = "CUDA error: out of memory"
NO_MEMORY: Final = re.compile(r"_STATUS_ALLOC_FAILED|DefaultCPUAllocator: can't allocate memory")
"""Messages of libraries, and of torch on a CPU, for missing memory."""


def device_failure(error: Exception) -> EngineFailedError | OutOfMemoryError | None:
    """Return the failure of the device behind an error; None if the device is not the cause."""
    match error:
        case torch.AcceleratorError():
            # Kernels without memory and failed allocations of pinned memory raise this error, too.
            if str(error).startswith(NO_DEVICE_MEMORY):
                return OutOfMemoryError()
            return EngineFailedError(type(error).__name__)
        case MemoryError() | torch.OutOfMemoryError():
            return OutOfMemoryError()
        case RuntimeError():
            return _library_failure(str(error))
        case _:
            return None


def _library_failure(message: str) -> EngineFailedError | OutOfMemoryError | None:
    if found := LIBRARY_FAILURE.match(message):
        return EngineFailedError(found[1])
    return OutOfMemoryError() if NO_MEMORY.search(message) else None


Result = TypeVar("Result")


async def within(
    seconds: float, work: Coroutine[Any, Any, Result], *, late: Callable[[], Exception]
) -> Result:
    """Await `work`; after the time limit, cancel `work` and raise the error that `late` makes."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if limit.expired():
            raise late() from None
        raise
