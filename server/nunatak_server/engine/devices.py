"""Devices: the choice for `auto`, the refusal of devices that cannot serve, and number formats."""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, assert_never

import torch

from nunatak_contract.enums import ServingDtype
from nunatak_contract.errors import NunatakError

FindFault = Callable[[torch.device], str | None]
"""Returns why a CUDA device cannot compute; None if it can."""
FindCapability = Callable[[torch.device], tuple[int, int]]
"""Returns the compute capability of a CUDA device."""

KNOWN: Final = re.compile(r"cpu|cuda(:\d{1,3})?")
NVIDIA_DEVICE: Final = Path("/dev/nvidia0")
"""Exists where the NVIDIA driver shows a device to this system or container."""
BFLOAT16_CAPABILITY: Final = (8, 0)
"""Compute capability from which a device has products in bfloat16 (Ampere)."""

logger = logging.getLogger(__name__)


def cuda_fault(device: torch.device) -> str | None:
    if not torch.cuda.is_available():
        return "torch finds no CUDA device here"
    found = torch.cuda.device_count()
    if (device.index or 0) >= found:
        return f"torch finds {found} CUDA devices here, numbered from 0"
    try:
        # A build of torch finds all devices, but has kernels for some generations only.
        ones = torch.ones(8, 8, device=device)
        (ones @ ones).sum().item()
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        return f"this build of torch cannot compute on it ({error})"
    return None


def resolve_device(
    name: str, *, find_fault: FindFault = cuda_fault, nvidia_device: Path = NVIDIA_DEVICE
) -> torch.device:
    """Return the device of that name; `auto` is CUDA if it can compute, else the CPU."""
    if name == "auto":
        return _best_device(find_fault, nvidia_device)
    if not KNOWN.fullmatch(name):
        raise NunatakError(
            "invalid_settings",
            problem=f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {name!r}",
        )
    device = torch.device(name)
    fault = find_fault(device) if device.type == "cuda" else None
    if fault is not None:
        raise NunatakError("invalid_settings", problem=f"device is {name!r}, but {fault}")
    return device


def _best_device(find_fault: FindFault, nvidia_device: Path) -> torch.device:
    device = torch.device("cuda")
    fault = find_fault(device)
    if fault is None:
        return device
    if torch.cuda.is_available():
        logger.warning("serving from the CPU, though torch finds a CUDA device: %s", fault)
    elif nvidia_device.exists():
        logger.warning(
            "serving from the CPU, though %s exists: %s; this build of torch may lack CUDA, or "
            "need a newer driver",
            nvidia_device, fault,
        )  # fmt: skip
    return torch.device("cpu")


def resolve_dtype(
    choice: ServingDtype,
    device: torch.device,
    *,
    find_capability: FindCapability = torch.cuda.get_device_capability,
) -> torch.dtype:
    """Return the number format for serving on that device.

    Without products in bfloat16 that is float32, as some backbones have numbers beyond float16.
    """
    match choice:
        case ServingDtype.AUTO:
            return torch.bfloat16 if _has_bfloat16(device, find_capability) else torch.float32
        case ServingDtype.FLOAT32:
            return torch.float32
        case ServingDtype.BFLOAT16:
            if device.type == "cuda" and not _has_bfloat16(device, find_capability):
                logger.warning("%s emulates bfloat16, which is slow; use float16", device)
            return torch.bfloat16
        case ServingDtype.FLOAT16:
            return torch.float16
        case _:
            assert_never(choice)


def _has_bfloat16(device: torch.device, find_capability: FindCapability) -> bool:
    return device.type == "cuda" and find_capability(device) >= BFLOAT16_CAPABILITY


def describe_device(device: torch.device) -> str:
    if device.type != "cuda":
        return str(device)
    major, minor = torch.cuda.get_device_capability(device)
    return f"{device} ({torch.cuda.get_device_name(device)}, capability {major}.{minor})"
