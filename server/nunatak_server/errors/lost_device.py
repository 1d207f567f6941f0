"""A lost device, told from what is the fault of a batch, or of one task.

Not named in `errors` itself, which is light: this loads torch.
"""

import re
from typing import Final

import torch

from nunatak_server.errors.serving import EngineFailedError

LIBRARY_FAILURE: Final = re.compile(
    r"(?:CUDA|cuDNN) error: (\w+_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR))"
)
"""How cuBLAS and cuDNN say that the device has failed; other statuses are of shapes or memory."""


def device_loss(error: Exception) -> EngineFailedError | None:
    """Return that the device is lost, if an error says so: no later use of it can succeed."""
    if isinstance(error, torch.AcceleratorError):
        return EngineFailedError(type(error).__name__)
    found = LIBRARY_FAILURE.match(str(error)) if isinstance(error, RuntimeError) else None
    return None if found is None else EngineFailedError(found[1])
