"""The memory report of a server. All sizes are in bytes."""

from nunatak_contract.record import Result


class BackboneMemory(Result):
    """The shared backbone in memory."""

    name: str
    digest: str
    dtype: str
    bytes: int
    parameters: int


class TaskMemory(Result):
    """The memory of one resident task version, without the backbone."""

    task: str
    version: int
    method: str
    split_depth: int | None
    bytes: int
    parameters: int
    pinned: bool


class DeviceTierMemory(Result):
    """Task versions ready to answer, and their budget; `pinned_bytes` are a part of `bytes`."""

    bytes: int
    budget_bytes: int
    pinned_bytes: int
    loading_bytes: int
    versions: int


class HostTierMemory(Result):
    """Checked bytes of task versions in main memory, and counts of the reads so far."""

    bytes: int
    budget_bytes: int
    blobs: int
    hits: int
    misses: int


class TiersMemory(Result):
    """The task versions that a server holds, with their budgets in bytes."""

    device: DeviceTierMemory
    host: HostTierMemory


class TrunkCacheMemory(Result):
    """Trunk states in memory, and counts of hits, misses and evictions since the start."""

    bytes: int
    max_bytes: int
    states: int
    hits: int
    misses: int
    evictions: int
    saved_tokens: int


class ProcessMemory(Result):
    """Memory of the server process by the kernel's counts; null for missing counts."""

    rss_bytes: int
    peak_rss_bytes: int | None
    pss_bytes: int | None
    uss_bytes: int | None
    runtime_bytes: int | None = None
    """RSS when the server was ready, less parameters: Python, torch, libraries, tokenizers. Null on
    a CUDA device."""
    rest_bytes: int | None = None
    """RSS that work has added, apart from parameters and trunk states: activations, and what the
    allocator keeps. Null on a CUDA device."""


class ActivationsMemory(Result):
    """The peak of the forward passes' own memory; null on a CPU."""

    peak_bytes: int | None


class MemoryReport(Result):
    """Bytes in use, and the bytes of one full model per resident task."""

    backbone: BackboneMemory
    other_backbones: tuple[BackboneMemory, ...] = ()
    tasks: tuple[TaskMemory, ...]
    shared_bytes: int
    dedicated_bytes: int
    saved_share: float
    saved_share_formula: float
    """The saved share by parameter counts alone."""
    tiers: TiersMemory
    trunk_cache: TrunkCacheMemory
    activations: ActivationsMemory
    process: ProcessMemory
