"""The errors that a task may fail with, of all packages that it passes through.

Not named in `errors` itself, which is light: the packages of models and artefacts load torch.

Failures of the device, told from what is the fault of a batch, or of one task.

Not named in `errors` itself, which is light: this loads torch.
"""

import re
from typing import Final

import torch

from nunatak_artifact import ArtifactError
from nunatak_contract.errors import ContractError
from nunatak_model import ModelError
from nunatak_registry import RegistryError
from nunatak_server.errors import EngineFailedError, OutOfMemoryError, ServerError

KnownError = ContractError | RegistryError | ModelError | ArtifactError | ServerError
"""Raised on purpose: it has a code, and its message may go to a caller and to the log."""
KNOWN_ERRORS: Final = (ContractError, RegistryError, ModelError, ArtifactError, ServerError)
"""The same, as `except` takes them."""


LIBRARY_FAILURE: Final = re.compile(
    r"(?:CUDA|cuDNN) error: (\w+_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR))"
)
"""How cuBLAS and cuDNN say that the device has failed; other statuses are of shapes or memory."""
NO_DEVICE_MEMORY: Final = "CUDA error: out of memory"
NO_MEMORY: Final = re.compile(r"_STATUS_ALLOC_FAILED|DefaultCPUAllocator: can't allocate memory")
"""How libraries, and torch on a processor, say that they were given no memory."""


def device_failure(error: Exception) -> EngineFailedError | OutOfMemoryError | None:
    """Return what an error says of the device: that it is lost, or has no memory; None: nothing."""
    match error:
        case torch.AcceleratorError():
            # A kernel, or memory to be pinned, that is given none is told in this way, too.
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
