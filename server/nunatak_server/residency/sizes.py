"""Sizes: what a version will take in memory, and how much there is for all of them."""

from pathlib import Path

import psutil
import torch

from nunatak_artifact import PARAMETERS_ROLE
from nunatak_registry import TaskManifest, TensorDtype

# The rest is for activations, the trunk cache, and loads, which hold a version up to three times:
# as stored, as tensors, and in the layout that serves.
DEFAULT_SHARE = 0.5

STORED_ITEMSIZE = {TensorDtype.FLOAT32: 4, TensorDtype.FLOAT16: 2, TensorDtype.BFLOAT16: 2}
CGROUP = Path("/sys/fs/cgroup")


def size_in_memory(manifest: TaskManifest, *, dtype: torch.dtype) -> int:
    """Return the bytes that a version takes in `dtype`, before anything of it is read.

    From the size of its blob, which is checked when it is read, rather than from its parameter
    counts, which only inform; too high by the blob's header.
    """
    blob = manifest.blob(PARAMETERS_ROLE)
    stored_bytes = 0 if blob is None else blob.size_bytes
    return stored_bytes * dtype.itemsize // STORED_ITEMSIZE[manifest.dtype]


def task_memory_budget(chosen_bytes: int | None, device: torch.device) -> int:
    """Return the budget of task versions: the operator's, or half of what is free now."""
    return chosen_bytes or int(DEFAULT_SHARE * free_memory(device))


def host_memory_budget(chosen_bytes: int | None, device: torch.device) -> int:
    """Return the budget of the host tier: the operator's, or half of what is free now.

    On a processor none, for there the device tier is in the same memory.
    """
    if chosen_bytes is not None:
        return chosen_bytes
    return 0 if device.type == "cpu" else int(DEFAULT_SHARE * free_memory(torch.device("cpu")))


def free_memory(device: torch.device) -> int:
    """Return the bytes that are free on a device; on a processor, within the process's limit."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    available = psutil.virtual_memory().available
    limit, used = _cgroup_bytes("memory.max"), _cgroup_bytes("memory.current")
    return available if limit is None else max(1, min(available, limit - (used or 0)))


def _cgroup_bytes(name: str) -> int | None:
    """Return a number of the process's control group; None where there is none."""
    try:
        text = (CGROUP / name).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
