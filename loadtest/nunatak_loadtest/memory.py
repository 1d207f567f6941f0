"""Memory of a process over time, measured from outside the process.

RSS counts shared pages in full, PSS in proportion to their users, USS not at all. If the process
ended, the machine would regain an amount between USS and PSS.
"""

# psutil carries no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import time
from collections.abc import Callable
from ipaddress import ip_address
from threading import Event, Thread
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import psutil
from pydantic import BaseModel, ConfigDict

from nunatak_contract.errors import NunatakError


class MemorySample(BaseModel):
    """Memory of one process at one moment; `None` if the system does not report a value."""

    model_config = ConfigDict(frozen=True)

    at_s: float
    rss_bytes: int
    pss_bytes: int | None = None
    uss_bytes: int | None = None


class MemorySampler:
    """Samples one process in its own thread, until stopped or until the process ends.

    Raises:
        NunatakError: `process_not_found`, there is no such process.
    """

    def __init__(
        self, pid: int, *, interval_s: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        try:
            self._process = psutil.Process(pid)
        except psutil.NoSuchProcess:
            raise NunatakError("process_not_found", pid=pid) from None
        self._interval_s = interval_s
        self._clock = clock
        self._stopping = Event()
        self._thread = Thread(target=self._run, name=f"memory-of-{pid}", daemon=True)
        self._samples: list[MemorySample] = []

    @property
    def samples(self) -> tuple[MemorySample, ...]:
        """The samples taken so far."""
        return tuple(self._samples)

    def start(self) -> None:
        """Take the first sample, and go on in the background."""
        self._take()
        self._thread.start()

    def stop(self) -> None:
        """Take the last sample."""
        self._stopping.set()
        self._thread.join()
        self._take()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s) and self._take():
            pass

    def _take(self) -> bool:
        try:
            self._samples.append(_measure(self._process, self._clock()))
        except psutil.NoSuchProcess:
            return False
        return True


def listening_pid(server: str) -> int | None:
    """The process on this machine that listens at a loopback URL; None if it cannot be found."""
    url = urlsplit(server)
    if url.hostname is None or not _is_loopback(url.hostname):
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


def _measure(process: psutil.Process, at_s: float) -> MemorySample:
    try:
        full = process.memory_full_info()
    except psutil.AccessDenied:
        return MemorySample(at_s=at_s, rss_bytes=process.memory_info().rss)
    return MemorySample(
        at_s=at_s,
        rss_bytes=full.rss,
        pss_bytes=getattr(full, "pss", None),
        uss_bytes=getattr(full, "uss", None),
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
