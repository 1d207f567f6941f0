"""Devices: copies to them, and the threads that compute on a CPU.

A copy from ordinary memory makes the host wait until the device has finished all its work. A copy
from pinned memory does not, so every copy goes through pinned memory; torch reuses the pinned
buffers.
"""

import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import chain

import torch
from jaxtyping import Int
from torch import Tensor


def to_device(
    numbers: Sequence[int], device: torch.device, *, dtype: torch.dtype = torch.int64
) -> Int[Tensor, " numbers"]:
    """Integers as a tensor on the device; the host does not wait for them to arrive."""
    if device.type != "cuda":
        return torch.tensor(numbers, dtype=dtype, device=device)
    return torch.tensor(numbers, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def flattened(lists: Iterable[Sequence[int]], device: torch.device) -> Int[Tensor, " tokens"]:
    """Numbers of the tokens of rows, one row after another, on the device."""
    return to_device(list(chain.from_iterable(lists)), device)


def write_on_device(source: Tensor, target: Tensor) -> None:
    """Write a tensor over one of the same shape and dtype that lies on a device.

    What reads `target` on the same stream reads the new values.
    """
    if target.device.type == "cuda" and source.device.type == "cpu":
        source = source.contiguous().pin_memory()
    target.copy_(source, non_blocking=True)


class BesideCompute:
    """Use of a device by other threads, next to the stream that computes batches."""

    def __init__(self, device: torch.device) -> None:
        # One for all threads: memory that is given back is reused on the stream it came from.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def work(self) -> Generator[None]:
        """Let the calling thread work next to the batches.

        The block's work starts after the batches requested so far, and is finished when the block
        ends. So the version that a thread loads is complete before any batch can use it, memory
        that a batch may still read is not overwritten, and no batch waits for a load.
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
            # After a failure too: memory that is given back must not be written any more.
            stream.record_event().synchronize()


def compute_without_helpers() -> None:
    """Let the calling thread compute alone from now on.

    Every other thread that has computed goes on as before. A thread that begins in this very moment
    may stay alone as well.

    Each thread that computes has helper threads, as many as there are cores. Two such teams on the
    same cores wait for each other within each operation, so both take many times as long. Work
    that must not disturb the batches therefore runs on one thread.
    """
    others = torch.get_num_threads()
    if others == 1:
        return
    torch.set_num_threads(1)
    # The last setting also holds for threads that have not computed yet, so it is set back on a
    # thread that will not compute.
    resetting = threading.Thread(target=torch.set_num_threads, args=(others,))
    resetting.start()
    resetting.join()
