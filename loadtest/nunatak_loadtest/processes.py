"""The memory of a server process on this machine, measured from outside.

A report shows it next to the ledger that the server keeps. RSS counts shared pages in full, PSS in
proportion to their users, USS not at all. If the process ended, the machine would regain an amount
between USS and PSS.
"""

from collections.abc import Sequence
from ipaddress import ip_address
from itertools import pairwise
from urllib.parse import urlsplit

import psutil
from pydantic import BaseModel, Field

from nunatak_client import Client, MemoryReport, PermissionDeniedError


class MemorySample(BaseModel, frozen=True):
    """The memory of a server at one moment; None for what the key or the system does not show."""

    at_s: float = Field(description="by the clock of the machine, since 1970")
    ledger: MemoryReport | None
    rss_bytes: int | None = None
    pss_bytes: int | None = None
    uss_bytes: int | None = None


def cache_hit_share(samples: Sequence[MemorySample]) -> float | None:
    """Return the share of trunk states that were there; None if not one process was sampled."""
    counts = [(it.hits, it.misses) for it in (s.ledger.trunk_cache for s in samples if s.ledger)]
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(counts)]
    # The counts of a process never fall: another one of the server has answered.
    if not steps or min(map(min, steps)) < 0:
        return None
    hits, misses = (sum(it) for it in zip(*steps, strict=True))
    return hits / (hits + misses) if hits + misses else 0.0


def ledger_of(client: Client) -> MemoryReport | None:
    try:
        return client.memory()
    except PermissionDeniedError:
        return None


def listening_pid(server: str) -> int | None:
    """The process on this machine that listens at a loopback URL; None if it cannot be found."""
    url = urlsplit(server)
    try:
        is_here = url.hostname == "localhost" or ip_address(url.hostname or "").is_loopback
    except ValueError:
        return None
    if not is_here:
        return None
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        return None
    pids = {
        connection.pid
        for connection in connections
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and connection.laddr.port == port
    }
    return next(iter(pids)) if len(pids) == 1 else None


def process_bytes(pid: int | None) -> dict[str, int | None]:
    if pid is None:
        return {}
    try:
        process = psutil.Process(pid)
        try:
            full = process.memory_full_info()
        except psutil.AccessDenied:
            return {"rss_bytes": process.memory_info().rss}
    except psutil.NoSuchProcess:
        return {}
    return {
        "rss_bytes": full.rss,
        "pss_bytes": getattr(full, "pss", None),
        "uss_bytes": getattr(full, "uss", None),
    }
