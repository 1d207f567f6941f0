"""`nunatak serve --processes` as real processes, and callers who never repeat a request."""

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from doubles.lifecycles import LIMIT_S, POLL_S
from doubles.processes import COMMAND, ServerProcess, server_process
from nunatak_contract.wire import REPLICA_HEADER

PATH = "/v1/tasks/tone/predict"
BODY = json.dumps({"inputs": "hi"})
HEADERS = {"content-type": "application/json"}
OK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPort:
    """A running fleet."""

    server: ServerProcess

    @property
    def port(self) -> int:
        """The port of all processes."""
        return int(self.server.address.rpartition(":")[2])

    @property
    def supervisor(self) -> psutil.Process:
        return psutil.Process(self.server.process.pid)

    def templates(self) -> list[psutil.Process]:
        """The processes that hold the backbone, the oldest first."""
        return children_of(self.supervisor)

    def replicas(self) -> list[psutil.Process]:
        """The processes that answer, of all templates."""
        return [it for template in self.templates() for it in children_of(template)]

    def names(self, *, at_least: int) -> set[str]:
        """The names of the replicas that answer at the shared port, on new connections."""
        found, ends_at = set[str](), time.monotonic() + LIMIT_S
        while len(found) < at_least:
            assert time.monotonic() < ends_at, f"only {found} answer"
            with asking(self.port) as callers:
                time.sleep(POLL_S)
            found |= set(callers.names)
        return found


def children_of(process: psutil.Process) -> list[psutil.Process]:
    """The children of a process, the oldest first; none if it has ended."""
    try:
        return sorted(process.children(), key=psutil.Process.create_time)
    except psutil.NoSuchProcess:
        return []


@contextmanager
def shared_port(
    registry: Path,
    backbone: Path,
    *,
    processes: int,
    log: Path | None = None,
    script: str = COMMAND,
    **settings: object,
) -> Generator[SharedPort]:
    """Start a fleet; it is killed at the end if it has not ended by itself."""
    with server_process(
        registry=registry,
        backbone=backbone,
        script=script,
        log=log,
        **{"processes": processes, "access_log": False, "compute_threads": 1, **settings},
    ) as server:
        yield SharedPort(server=server)


@dataclass(slots=True)
class Callers:
    """Callers on threads, each with one connection, who ask until the end."""

    port: int
    statuses: Counter[int] = field(default_factory=Counter[int])
    names: Counter[str] = field(default_factory=Counter[str])
    num_cut: int = 0
    """Requests without an answer."""
    is_over: threading.Event = field(default_factory=threading.Event)

    @property
    def num_failed(self) -> int:
        """Requests without an answer of the task."""
        return self.num_cut + self.statuses.total() - self.statuses[OK]

    def ask(self) -> None:
        """Ask until the end."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        while not self.is_over.is_set():
            try:
                connection.request("POST", PATH, BODY, HEADERS)
                answer = connection.getresponse()
                answer.read()
            except (http.client.HTTPException, OSError):
                connection.close()
                self.num_cut += 1
            else:
                self.statuses[answer.status] += 1
                self.names[answer.headers.get(REPLICA_HEADER, "")] += 1
        connection.close()


@contextmanager
def asking(port: int, *, callers: int = 6) -> Generator[Callers]:
    """Let callers ask; they have ended at the end."""
    found = Callers(port)
    threads = [threading.Thread(target=found.ask) for _ in range(callers)]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        found.is_over.set()
        for thread in threads:
            thread.join()


def wait_until(is_true: Callable[[], bool]) -> None:
    """Return once something is true."""
    ends_at = time.monotonic() + LIMIT_S
    while not is_true():
        assert time.monotonic() < ends_at, "it has not become true in time"
        time.sleep(POLL_S)
