"""Devices: copies to them, and the threads that compute on a CPU.

A copy from ordinary memory makes the host wait until the device has finished all its work. A copy
from pinned memory does not, so every copy goes through pinned memory; torch reuses the pinned
buffers.
"""

import math
import os
import threading
from array import array
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

_P = ParamSpec("_P")
_R = TypeVar("_R")
_TYPE_CODES = {torch.int32: "i", torch.int64: "q"}


def to_device(
    numbers: Sequence[int], device: torch.device, *, dtype: torch.dtype = torch.int64
) -> Int[Tensor, " numbers"]:
    """Integers as a tensor on the device; the host does not wait for them to arrive."""
    if device.type != "cuda":
        return torch.tensor(numbers, dtype=dtype, device=device)
    if not numbers:
        return torch.empty(0, dtype=dtype, device=device)
    # An array converts the numbers several times faster than torch does.
    staged = torch.asarray(array(_TYPE_CODES[dtype], numbers), dtype=dtype)
    return staged.pin_memory().to(device, non_blocking=True)


def to_device_at_once(
    lists: Sequence[Sequence[int]], device: torch.device, *, dtype: torch.dtype = torch.int64
) -> tuple[Int[Tensor, " numbers"], ...]:
    """Several lists of integers as tensors on the device, in one copy; the first is aligned."""
    together = to_device(list(chain.from_iterable(lists)), device, dtype=dtype)
    return torch.split(together, [len(numbers) for numbers in lists])


def write_on_device(source: Tensor, target: Tensor) -> None:
    """Overwrite; later reads of `target` on the same stream see the new values."""
    if target.device.type == "cuda" and source.device.type == "cpu":
        source = source.contiguous().pin_memory()
    target.copy_(source, non_blocking=True)


class SideStream:
    """A second CUDA stream, on which other threads work next to the batches; none on a CPU."""

    def __init__(self, device: torch.device) -> None:
        # All threads share one stream, because torch reuses freed memory only on its own stream.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def work(self) -> Generator[None]:
        """Let the calling thread work next to the batches.

        The block's work starts after the batches requested so far, and is finished when the block
        ends. A loaded version is therefore complete before any batch can use it. Memory that a
        batch may still read is not overwritten. No batch waits for a load.
        """
        stream = self._stream
        if stream is None:
            yield
            return
        stream.wait_stream(torch.cuda.default_stream(stream.device))
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            # Also after a failure: freed memory must not be written any more.
            stream.record_event().synchronize()


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a CUDA device the current device of the calling thread, which begins with device 0."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def compute_without_helpers() -> None:
    """Let the calling thread compute alone from now on; threads that have computed go on.

    Each thread that computes has helper threads, as many as there are cores. Two such teams on the
    same cores wait for each other within each operation, so both take many times as long. Work that
    must not disturb the batches therefore runs on one thread.
    """
    others = torch.get_num_threads()
    if others == 1:
        return
    torch.set_num_threads(1)
    # The last setting also holds for threads that have not computed yet. Another thread, which
    # never computes, therefore restores the setting.
    resetting = threading.Thread(target=torch.set_num_threads, args=(others,))
    resetting.start()
    resetting.join()


def on_own_thread(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Run a function that computes, on a thread that ends with it.

    The helper threads of a thread exist until the thread ends. While a process has more threads
    that compute or help than cores, all helpers sleep between two operations, and each operation
    waits until they wake. In a server, the engine's thread is therefore the only thread with
    helpers that stays.
    """
    with ThreadPoolExecutor(1) as once:
        return once.submit(function, *args, **kwargs).result()


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuShare:
    """The CPUs of a machine, and the part of the CPUs that this process may use."""

    num_cpus: int
    num_allowed: int
    """CPUs in the affinity of this process."""
    quota: float | None
    """CPUs that the cgroup of this process grants; None without a limit."""
    load: float
    """Mean number of processes that computed, or waited for a CPU, in the last minute."""

    def free_threads(self, wanted: int) -> int:
        """Return how many of `wanted` threads find a free CPU; at least 1.

        A thread without a CPU of its own makes every other thread wait at the end of each
        operation, so one thread too many costs far more than one thread too few.
        """
        idle = math.floor(self.num_cpus - self.load + 0.5)
        granted = self.num_allowed if self.quota is None else math.floor(self.quota)
        return max(1, min(wanted, self.num_allowed, granted, idle))


def cpu_share() -> CpuShare:
    return CpuShare(
        num_cpus=os.cpu_count() or 1,
        num_allowed=len(os.sched_getaffinity(0)),
        quota=cpu_quota(),
        load=os.getloadavg()[0],
    )


def cpu_quota(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> float | None:
    """The limit of a cgroup (2) holds for all groups below it, so the lowest limit counts."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    folder, limits = root / own, list[float]()
    for each in (folder, *folder.parents):
        if not each.is_relative_to(root):
            break
        try:
            quota, period = (each / "cpu.max").read_text(encoding="utf-8").split()
        except (OSError, ValueError):
            continue
        if quota != "max":
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def chosen_threads() -> int:
    """A number in the environment (`OMP_NUM_THREADS`) is the user's choice, and stays."""
    wanted = torch.get_num_threads()
    return wanted if "OMP_NUM_THREADS" in os.environ else cpu_share().free_threads(wanted)


def compute_with(num_threads: int | None) -> None:
    """Set the number of threads that compute; None: the number that `chosen_threads` returns."""
    torch.set_num_threads(num_threads or chosen_threads())


def has_cuda() -> bool:
    return torch.cuda.is_available()
