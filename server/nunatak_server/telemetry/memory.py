"""The memory, the queues and the task versions of a server at one moment, and their metrics.

`ServerState` is read on the event loop, and collected on a thread, so that a scrape costs the event
loop nothing.
"""

import resource
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import psutil
import torch
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from nunatak_contract.memory import (
    DeviceTierMemory,
    HostTierMemory,
    ProcessMemory,
    TrunkCacheMemory,
)
from nunatak_model import Backbone, BackboneConfig, Branch, encoder_parameters, model_size
from nunatak_server.engine.backbones import Backbones
from nunatak_versions import LoadedTask


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLedger:
    """Bytes of parameters, without activations, caches and the process itself."""

    backbone_bytes: int
    tasks_bytes: int
    dedicated_bytes: int
    """One full model for each task in memory, however many of its versions are there."""

    @property
    def shared_bytes(self) -> int:
        return self.backbone_bytes + self.tasks_bytes

    @property
    def saved_share(self) -> float:
        return 1 - self.shared_bytes / self.dedicated_bytes if self.dedicated_bytes else 0.0


def take_stock(backbones: Backbones, tasks: Sequence[LoadedTask]) -> MemoryLedger:
    """Add up the parameters in memory for `tasks`, and those of a full model for each task.

    A full model is a copy of the backbone with the head of the task, in the same number format.
    """
    # Computed once for each backbone, because these look at tensors.
    sizes = {it.digest: (it.whole_bytes, it.dtype.itemsize) for it in backbones}
    full = [
        (*sizes[backbones.of(it.manifest).digest], it.branch.head_parameters)
        for it in one_of_each(tasks)
    ]
    return MemoryLedger(
        backbone_bytes=sum(it.num_bytes for it in backbones),
        tasks_bytes=sum(task.num_bytes for task in tasks),
        dedicated_bytes=sum(whole + own * itemsize for whole, itemsize, own in full),
    )


def one_of_each(tasks: Iterable[LoadedTask]) -> Collection[LoadedTask]:
    """Return the newest version of each task: a canary and an old version replace no model."""
    newest = sorted(tasks, key=lambda it: it.manifest.version)
    return {it.manifest.task: it for it in newest}.values()


def saved_by_formula(*groups: tuple[BackboneConfig, Sequence[Branch]]) -> float:
    """Return the share of parameters that sharing saves, by the shapes of the modules.

    Each group has the shape of a backbone, and the branches on that backbone.

    `1 - (shared + sum of own) / (sum of full models)`, where `shared` is the part of the backbone
    that at least one branch reads (Lee et al. 2019/2020, sec. 3). For branches with equal split
    depth that own all layers above, the result equals `parameters_saved`.
    """
    sizes = [_used_and_full(config, branches) for config, branches in groups if branches]
    return 1.0 - sum(used for used, _ in sizes) / sum(full for _, full in sizes) if sizes else 0.0


def _used_and_full(config: BackboneConfig, branches: Sequence[Branch]) -> tuple[float, float]:
    heads = sum(branch.head_parameters for branch in branches)
    full = len(branches) * encoder_parameters(config) + heads
    own = heads + sum(branch.branch_parameters for branch in branches)
    size = model_size(config, branches[0].spec.head)
    reads = [branch.num_frozen_layers_read(config) for branch in branches]
    deepest = max((depth for depth in reads if depth is not None), default=None)
    shared = 0.0 if deepest is None else size.embedding + deepest * size.per_layer
    return shared + own, full


def peak_activations(backbone: Backbone, *, held_bytes: int) -> int | None:
    """Return the peak bytes of forward passes without `held_bytes`; None on a CPU."""
    if backbone.device.type != "cuda":
        return None
    return max(0, torch.cuda.max_memory_allocated(backbone.device) - held_bytes)


def measure_process() -> ProcessMemory:
    """Return the memory of this process. The call takes milliseconds: run it on a thread.

    Processes that map the same file share pages, so only PSS and USS add up over processes.
    """
    process = psutil.Process()
    try:
        full = process.memory_full_info()
    except psutil.AccessDenied:
        full = process.memory_info()
    return ProcessMemory(
        rss_bytes=full.rss,
        # Linux counts in KiB. Other systems use another unit, or have no such number.
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if sys.platform == "linux"
        else None,
        pss_bytes=getattr(full, "pss", None),
        uss_bytes=getattr(full, "uss", None),
    )


@dataclass(frozen=True, kw_only=True)
class ServerState(Collector):
    """The state that a scrape shows next to the counters."""

    build: dict[str, str]
    """The facts about the process that never change."""
    is_ready: bool
    reads_registry: bool
    holds_versions: bool
    num_waiting: int
    num_running: int
    num_admitted_tokens: float
    num_body_bytes: float
    ledger: MemoryLedger
    device: DeviceTierMemory
    task_bytes: Mapping[str, int]
    """Bytes of the versions in memory, by task."""
    host: HostTierMemory
    trunk: TrunkCacheMemory
    task_label: Callable[[str], str]
    """Returns the label of a task."""

    def collect(self) -> Iterable[Metric]:
        host, device = self.host, self.device
        yield InfoMetricFamily("nunatak_build", "1, with labels about the server", self.build)
        for name, text, value in self._gauges():
            yield GaugeMetricFamily(f"nunatak_{name}", text, value=value)
        for name, text, value in self._counters():
            yield CounterMetricFamily(f"nunatak_{name}", text, value=value)
        yield _tiers("tier_bytes", "Bytes by tier", device.bytes, host.bytes)
        yield _tiers(
            "tier_budget_bytes", "Budget of a tier", device.budget_bytes, host.budget_bytes
        )
        yield self._tasks()

    def _gauges(self) -> Iterable[tuple[str, str, float]]:
        ledger, device, trunk = self.ledger, self.device, self.trunk
        return (
            ("ready", "1 while /readyz answers 200", self.is_ready),
            ("registry_readable", "1 while the registry can be read", self.reads_registry),
            (
                "versions_held",
                "1 while the registry protects the versions in memory from deletion",
                self.holds_versions,
            ),
            ("waiting_requests", "Requests that wait for a batch or for a load", self.num_waiting),
            ("running_requests", "Requests with a row in a batch that runs", self.num_running),
            (
                "admitted_tokens",
                "Tokens of the rows of admitted requests, through all layers",
                self.num_admitted_tokens,
            ),
            ("held_body_bytes", "Bytes of admitted bodies", self.num_body_bytes),
            ("backbone_bytes", "Bytes of the backbone", ledger.backbone_bytes),
            ("resident_bytes", "Bytes of backbone and task versions", ledger.shared_bytes),
            (
                "dedicated_bytes",
                "Bytes that one full model for each task in memory would take",
                ledger.dedicated_bytes,
            ),
            ("resident_tasks", "Task versions in memory", device.versions),
            ("pinned_bytes", "Bytes of pinned task versions", device.pinned_bytes),
            ("loading_bytes", "Bytes of loading versions", device.loading_bytes),
            ("trunk_cache_states", "Trunk states in memory", trunk.states),
            ("trunk_cache_bytes", "Bytes of trunk states in memory", trunk.bytes),
            ("trunk_cache_max_bytes", "Budget of the trunk cache", trunk.max_bytes),
        )

    def _counters(self) -> Iterable[tuple[str, str, float]]:
        host, trunk = self.host, self.trunk
        saved = "Tokens of the trunk states that were read"
        return (
            ("host_tier_hits", "Loads that found their bytes in the host tier", host.hits),
            ("host_tier_misses", "Loads that read the store", host.misses),
            ("trunk_cache_hits", "Trunk states that were read", trunk.hits),
            ("trunk_cache_misses", "Trunk states that had to be computed", trunk.misses),
            ("trunk_cache_evictions", "Trunk states dropped to keep the budget", trunk.evictions),
            ("trunk_cache_saved_tokens", saved, trunk.saved_tokens),
        )

    def _tasks(self) -> Metric:
        bytes_by_label = Counter[str]()
        for task, num_bytes in self.task_bytes.items():
            bytes_by_label[self.task_label(task)] += num_bytes
        family = GaugeMetricFamily(
            "nunatak_task_resident_bytes", "Bytes of a task's versions in memory", labels=("task",)
        )
        for label, num_bytes in bytes_by_label.items():
            family.add_metric((label,), num_bytes)
        return family


def _tiers(name: str, documentation: str, device: int, host: int) -> Metric:
    family = GaugeMetricFamily(f"nunatak_{name}", documentation, labels=("tier",))
    family.add_metric(("device",), device)
    family.add_metric(("host",), host)
    return family
