"""Server processes: a private one for a block of code, and the memory of any one on this machine.

The memory is measured from outside, next to the ledger that the server keeps. RSS counts shared
pages in full, PSS in proportion to their users, USS not at all. If the process ended, the machine
would regain an amount between USS and PSS.
"""

# psutil carries no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import subprocess
import sys
from collections.abc import Sequence
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import psutil
from pydantic import BaseModel, Field

from nunatak_client import Client, MemoryReport, PermissionDeniedError
from nunatak_contract.errors import NunatakError

READY = "Nunatak is ready on "
STOP_TIMEOUT_S = 40


class ServerProcess:
    """Runs `nunatak serve` with `options` on a free port; logs to a file or standard error."""

    def __init__(
        self, registry: str | Path, *, options: tuple[str, ...] = (), log: Path | None = None
    ) -> None:
        self._command = [
            sys.executable,
            *("-m", "nunatak_cli", "serve"),
            *("--registry", str(registry)),
            *("--port", "0"),
            *options,
        ]
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("a ServerProcess has a process only between start and stop")
        return self._process.pid

    def start(self) -> None:
        """Start the server and wait until it accepts requests."""
        log = None if self._log is None else self._log.open("w", encoding="utf-8")
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter; no shell
                self._command, stdout=subprocess.PIPE, stderr=log, text=True
            )
        finally:
            if log is not None:
                log.close()
        for line in self._process.stdout or ():
            if line.startswith(READY):
                self.url = line.removeprefix(READY).strip()
                return
        where = (
            "its messages above give the reason"
            if self._log is None
            else f"{self._log.name} says why"
        )
        raise NunatakError("server_start_failed", exit_code=self._process.wait(), where=where)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


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
    hits, misses = map(sum, zip(*steps, strict=True))
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
