"""The memory ledger: what is held, and what one full model per task would hold."""

from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from nunatak_artifact import LoadedTask
from nunatak_model import Backbone


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLedger:
    """Bytes of parameters; activations and the process itself are not in it."""

    backbone_bytes: int
    tasks_bytes: int
    dedicated_bytes: int

    @property
    def shared_bytes(self) -> int:
        """What is held: one backbone, and each resident task version's own parameters."""
        return self.backbone_bytes + self.tasks_bytes

    @property
    def saved_share(self) -> float:
        """The share of the dedicated bytes that sharing saves; negative where it costs."""
        return 1 - self.shared_bytes / self.dedicated_bytes if self.dedicated_bytes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """What the operating system counts; None where it does not count it."""

    rss_bytes: int
    pss_bytes: int | None
    uss_bytes: int | None


def take_stock(backbone: Backbone, tasks: Sequence[LoadedTask]) -> MemoryLedger:
    """Add up the parameters held for `tasks`, and those of one full model for each.

    A full model is a copy of the backbone with the task's head: what a server without sharing
    would load per task, in the same numbers.
    """
    return MemoryLedger(
        backbone_bytes=backbone.num_bytes,
        tasks_bytes=sum(task.num_bytes for task in tasks),
        dedicated_bytes=sum(
            backbone.num_bytes + task.branch.head_parameters * backbone.dtype.itemsize
            for task in tasks
        ),
    )


def measure_process() -> ProcessMemory:
    """Ask the operating system about this process; takes milliseconds, so not on the event loop.

    Several processes that map one file share its pages: only PSS and USS can be added up.
    """
    process = psutil.Process()
    try:
        full = process.memory_full_info()
    except psutil.AccessDenied:
        return ProcessMemory(rss_bytes=process.memory_info().rss, pss_bytes=None, uss_bytes=None)
    return ProcessMemory(
        rss_bytes=full.rss,
        pss_bytes=getattr(full, "pss", None),
        uss_bytes=getattr(full, "uss", None),
    )
