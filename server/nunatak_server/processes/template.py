"""The template of a local fleet: loads the backbone once, and forks the replicas from itself.

A fork shares all memory until somebody writes to it. Nobody writes to the weights, packed or not,
so all replicas together hold them once. A fork copies only the thread that forks, and a lock that
another thread held would stay locked. So the template has one thread, and checks that.
"""

import ctypes
import gc
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Final

import torch

from nunatak_contract.errors import NunatakError, invalid_settings
from nunatak_server.errors import START_AGAIN, EngineFailedError
from nunatak_server.processes.supervisor import (
    ANSWERS,
    ENDS,
    READY,
    RESTART_S,
    SIGNALS,
    TICK_S,
    ReplicaPlace,
    drain_delay_of,
    passed_on,
)
from nunatak_server.residency.resident_set import task_memory_budget
from nunatak_server.settings import ServerSettings
from nunatak_server.telemetry.logs import log_failure, write_log

PR_SET_PDEATHSIG: Final = 1
"""The option of `prctl` in `linux/prctl.h`."""
THREADS: Final = Path("/proc/self/task")
LISTED_S: Final = 1.0
"""For how long, at most, the system lists a thread that was joined."""
CPU: Final = torch.device("cpu")

Serve = Callable[
    [ServerSettings, list[socket.socket], Callable[[str], None], Callable[[], bool]], None
]
"""Serves on sockets until a signal. The third argument is called when the first request may come.
The last one says whether to serve on after the signal."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Replica:
    process: ForkProcess
    news: "Connection[bytes, bytes]"
    started: float = field(default_factory=time.monotonic)
    is_open: bool = False

    def look(self) -> None:
        if not self.is_open and self.news.poll():
            try:
                self.is_open = self.news.recv_bytes() == READY
            except EOFError:
                return


class Template:
    def __init__(self, settings: ServerSettings, place: ReplicaPlace, *, serve: Serve) -> None:
        self._settings = divided(settings)
        self._place = place
        self._serve = serve
        self._pid = os.getpid()
        self._replicas = dict[int, _Replica]()
        self._not_before = dict[int, float]()
        self._has_answered = False
        self._has_begun = False
        self._is_ending = False
        self._status = 0

    def run(self) -> int:
        """Serve until a signal, or until a replica fails before all have answered once."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        end_with(self._place.supervisor)
        check_single()
        gc.collect()
        # A collection writes to the objects that it looks at, and so would copy their pages.
        gc.freeze()
        self._start(0)
        while self._replicas or not self._is_ending:
            received = signal.sigtimedwait(SIGNALS, TICK_S)
            if received is not None and received.si_signo in ENDS:
                self._end(received.si_signo)
            for index in list(self._replicas):
                self._look(index)
            self._fill()
        return self._status

    def _fill(self) -> None:
        """Start the missing replicas. The first one starts alone: it may make the registry."""
        if not self._has_answered and any(it.is_open for it in self._replicas.values()):
            self._has_answered = True
            os.write(self._place.reports_to, ANSWERS)
        if self._is_ending or not self._has_answered:
            return
        for index in range(self._settings.processes):
            is_due = time.monotonic() >= self._not_before.get(index, 0.0)
            if index not in self._replicas and is_due:
                self._start(index)
        num_open = sum(it.is_open for it in self._replicas.values())
        if not self._has_begun and num_open == self._settings.processes:
            self._has_begun = True
            os.write(self._place.reports_to, READY)

    def _start(self, index: int) -> None:
        context = get_context("fork")
        try:
            news, teller = context.Pipe(duplex=False)
            process = context.Process(target=self._run_replica, args=(index, news, teller))
            try:
                process.start()
            except OSError:
                news.close()
                raise
            finally:
                teller.close()
        except OSError as error:
            logger.error("process %d cannot start: %s", index, error)  # noqa: TRY400 - no bug of ours
            self._lose(index, status=1, started=time.monotonic())
        else:
            self._replicas[index] = _Replica(process=process, news=news)

    def _look(self, index: int) -> None:
        replica = self._replicas[index]
        replica.look()
        status = replica.process.exitcode
        if status is None:
            return
        del self._replicas[index]
        replica.news.close()
        self._lose(index, status=status, started=replica.started)

    def _lose(self, index: int, *, status: int, started: float) -> None:
        if self._is_ending:
            return
        if self._has_begun or (self._has_answered and status < 0):
            logger.error("process %d ended (status %d) and starts again", index, status)
            self._not_before[index] = started + RESTART_S
        else:
            if status < 0:
                logger.error("process %d was killed at its start (signal %d)", index, -status)
            self._status = status if status > 0 else 1
            self._end(signal.SIGTERM)

    def _end(self, received: int) -> None:
        passes_on = passed_on(received, is_ending=self._is_ending)
        self._is_ending = True
        for replica in self._replicas.values():
            if replica.process.pid and replica.process.is_alive():
                os.kill(replica.process.pid, passes_on)

    def _run_replica(
        self, index: int, news: "Connection[bytes, bytes]", teller: "Connection[bytes, bytes]"
    ) -> None:
        end_with(self._pid)
        # A copy that stays open would hide the end of a process from the others.
        for copied in (news, *(it.news for it in self._replicas.values())):
            copied.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        shared, *own = (socket.socket(fileno=it) for it in self._place.listeners)
        settings = settings_of(self._settings, index, port=own[index].getsockname()[1])
        try:
            stays = partial(is_lost, self._pid, self._place.reports_to)
            self._serve(settings, [shared, own[index]], lambda _: teller.send_bytes(READY), stays)
        except NunatakError as error:
            log_failure(error.code, str(error))
            write_log()
            sys.exit(START_AGAIN if isinstance(error, EngineFailedError) else 1)


def is_lost(template: int, reports_to: int) -> bool:
    """Return whether a template has ended alone, and its supervisor still starts another one."""
    looking = select.poll()
    looking.register(reports_to, 0)
    # The end of the last reader of a pipe is an error.
    return os.getppid() != template and not looking.poll(0)


def divided(settings: ServerSettings) -> ServerSettings:
    """Return the settings of each replica: cores and memory without own choice are divided."""
    num = settings.processes
    chosen: dict[str, object] = {"drain_delay_s": drain_delay_of(settings)}
    if not settings.compute_threads:
        chosen["compute_threads"] = max(1, len(os.sched_getaffinity(0)) // num)
    if settings.task_memory_bytes is None:
        chosen["task_memory_bytes"] = task_memory_budget(None, CPU) // num
    return settings.model_copy(update=chosen)


def settings_of(settings: ServerSettings, index: int, *, port: int) -> ServerSettings:
    name = settings.replica_id and f"{settings.replica_id}-{index}"
    return settings.model_copy(update={"port": port, "replica_id": name})


def check_single(threads: Path = THREADS) -> None:
    ends_at = time.monotonic() + LISTED_S
    while len(names := _names_of(threads)) > 1:
        if time.monotonic() > ends_at:
            raise invalid_settings(
                f"processes: the backbone was loaded by several threads ({', '.join(names)}), "
                "so its memory cannot be shared. Copy a backbone of a hub to this machine first, "
                "with `nunatak backbone add`"
            )
        time.sleep(LISTED_S / 100)


def _names_of(threads: Path) -> list[str]:
    names: list[str] = []
    for thread in threads.iterdir():
        # A thread may end between the listing and the reading.
        with suppress(FileNotFoundError, ProcessLookupError):
            names.append((thread / "comm").read_text().strip())
    return names


def end_with(parent: int) -> None:
    """Let the system send SIGTERM to this process when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        # The parent has ended before the call.
        os.kill(os.getpid(), signal.SIGTERM)
