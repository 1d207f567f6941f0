"""Devices: the choice for `auto`, and the refusal of devices that cannot serve."""

import logging
from collections.abc import Callable
from typing import assert_never

import torch

from nunatak_contract.enums import ServingDtype
from nunatak_contract.errors import NunatakError

FindFault = Callable[[torch.device], str | None]
"""Returns why a CUDA device cannot compute; None if it can."""

logger = logging.getLogger(__name__)


def cuda_fault(device: torch.device) -> str | None:
    """Run a product on a CUDA device; return the reason of a failure, or None."""
    if not torch.cuda.is_available():
        return "torch finds no CUDA device here"
    found = torch.cuda.device_count()
    if (device.index or 0) >= found:
        return f"torch finds {found} CUDA devices here, numbered from 0"
    try:
        # A build of torch finds all devices, but has kernels for some generations only.
        ones = torch.ones(8, 8, device=device)
        (ones @ ones).sum().item()
    except RuntimeError as error:
        return f"this build of torch cannot compute on it ({error})"
    return None


def resolve_device(name: str, *, find_fault: FindFault = cuda_fault) -> torch.device:
    """Return the device of that name; `auto` is CUDA if it can compute, else the CPU.

    Raises:
        NunatakError: `invalid_settings`, there is no such device, or it cannot compute.
    """
    if name == "auto":
        return _best_device(find_fault)
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in {"cpu", "cuda"}:
        raise NunatakError(
            "invalid_settings",
            problem=f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {name!r}",
        )
    fault = find_fault(device) if device.type == "cuda" else None
    if fault is not None:
        raise NunatakError("invalid_settings", problem=f"device is {name!r}, but {fault}")
    return device


def _best_device(find_fault: FindFault) -> torch.device:
    device = torch.device("cuda")
    fault = find_fault(device)
    if fault is None:
        return device
    if torch.cuda.is_available():
        logger.warning("serving from the CPU, though torch finds a CUDA device: %s", fault)
    return torch.device("cpu")


def resolve_dtype(choice: ServingDtype, device: torch.device) -> torch.dtype:
    """Return the number format for serving on that device."""
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
