"""The memory ledger: what is held, and what one full model per task would hold."""

import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import torch

from nunatak_artifact import LoadedTask
from nunatak_model import (
    Backbone,
    BackboneConfig,
    Branch,
    encoder_parameters,
    model_size,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLedger:
    """Parameters; activations, caches and the process itself are not in it."""

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
    peak_rss_bytes: int | None
    pss_bytes: int | None
    uss_bytes: int | None


def take_stock(backbone: Backbone, tasks: Sequence[LoadedTask]) -> MemoryLedger:
    """Add up the parameters held for `tasks`, and those of one full model for each.

    A full model is a copy of the backbone with the task's head: what a server without sharing
    would load per task, in the same numbers.
    """
    head_parameters = sum(task.branch.head_parameters for task in tasks)
    return MemoryLedger(
        backbone_bytes=backbone.num_bytes,
        tasks_bytes=sum(task.num_bytes for task in tasks),
        dedicated_bytes=len(tasks) * backbone.whole_bytes
        + head_parameters * backbone.dtype.itemsize,
    )


def saved_by_formula(config: BackboneConfig, branches: Sequence[Branch]) -> float:
    """Return the share of parameters that sharing saves, from the shapes of the modules alone.

    `1 - (shared + sum of own) / (sum of full models)`, where `shared` is the part of the backbone
    that any branch reads (Lee et al. 2019/2020, sec. 3). For branches of equal split depth that own
    all layers above it, this is `parameters_saved`.
    """
    if not branches:
        return 0.0
    heads = sum(branch.head_parameters for branch in branches)
    full = len(branches) * encoder_parameters(config) + heads
    own = heads + sum(branch.branch_parameters for branch in branches)
    size = model_size(config, branches[0].spec.head)
    reads = [branch.num_frozen_layers_read(config) for branch in branches]
    deepest = max((depth for depth in reads if depth is not None), default=None)
    shared = 0.0 if deepest is None else size.embedding + deepest * size.per_layer
    return 1.0 - (shared + own) / full


def peak_activations(backbone: Backbone, *, held_bytes: int) -> int | None:
    """Return the most bytes that forward passes held at once beside `held_bytes`.

    None on a processor, where nothing counts them apart from all else.
    """
    if backbone.device.type != "cuda":
        return None
    return max(0, torch.cuda.max_memory_allocated(backbone.device) - held_bytes)


def _peak_rss() -> int | None:
    # Linux counts in KiB; elsewhere the unit is another, or there is no such count.
    if sys.platform != "linux":
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure_process() -> ProcessMemory:
    """Ask the operating system about this process; takes milliseconds, so not on the event loop.

    Several processes that map one file share its pages: only PSS and USS can be added up.
    """
    process = psutil.Process()
    try:
        full = process.memory_full_info()
    except psutil.AccessDenied:
        full = process.memory_info()
    return ProcessMemory(
        rss_bytes=full.rss,
        peak_rss_bytes=_peak_rss(),
        pss_bytes=getattr(full, "pss", None),
        uss_bytes=getattr(full, "uss", None),
    )
