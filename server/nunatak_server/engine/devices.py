"""Devices: turns `auto` into what this machine has."""

from typing import assert_never

import torch

from nunatak_server.errors import InvalidSettingsError
from nunatak_server.process.settings import ServingDtype


def resolve_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is CUDA where there is one, else the CPU.

    Raises:
        InvalidSettingsError: no such device, or CUDA is wanted where there is none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InvalidSettingsError(
            f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {name!r}"
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidSettingsError(f"device is {name!r}, but torch finds no CUDA device here")
    return device


def resolve_dtype(choice: ServingDtype, device: torch.device) -> torch.dtype:
    """Return the number format to serve in on that device."""
    match choice:
        case ServingDtype.AUTO:
            return torch.bfloat16 if device.type == "cuda" else torch.float32
        case ServingDtype.FLOAT32:
            return torch.float32
        case ServingDtype.BFLOAT16:
            return torch.bfloat16
        case ServingDtype.FLOAT16:
            return torch.float16
        case _:
            assert_never(choice)
