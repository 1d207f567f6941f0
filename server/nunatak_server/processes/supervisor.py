"""The supervisor of a local fleet: several processes serve one port from one copy of the weights.

    supervisor > template > replicas 0, 1, ..., each on the shared port and on a port of its own

The supervisor owns the ports and loads no library of the model. The template loads the backbone and
forks the replicas (`template.py`). SIGHUP starts a second template, with new settings and new code.
Once all its replicas answer, the first template ends. If the second template fails, or cannot
start, the first one goes on. SIGTERM ends everything as it ends a single server.

A first template that fails at its start ends the fleet, because its settings are at fault. Once a
replica has answered callers, a template that is killed is started again. Until the new replicas
answer, those of the killed template go on.
"""

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self

from nunatak_contract.errors import invalid_settings
from nunatak_server.settings import ServerSettings
from nunatak_server.telemetry.logs import log_everything, print_address, write_log

PLACE_VARIABLE: Final = "_NUNATAK_PLACE_IN_FLEET"
SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD})
"""Signals that wait until the process asks for them, so that no code runs between two steps."""
ENDS: Final = frozenset({signal.SIGTERM, signal.SIGINT})
TICK_S: Final = 0.1
RESTART_S: Final = 5.0
"""Shortest time between two starts of one process."""
DRAIN_DELAY_S: Final = 2
"""The drain delay without an own choice: in this time callers learn to leave their connections."""
UNTAKEN_S: Final = 1.0
"""How long connections wait after the drain delay, until it is certain that no process takes
them."""
ANSWERS, READY = b"0", b"1"
"""The reports of a template: its first replica answers; all replicas answer."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlace:
    """What a template gets from its supervisor: sockets by their numbers, and where to report."""

    supervisor: int
    listeners: tuple[int, ...]
    """The shared socket, then one socket for each replica."""
    reports_to: int

    @classmethod
    def find(cls) -> Self | None:
        text = os.environ.pop(PLACE_VARIABLE, None)
        if text is None:
            return None
        # The supervisor blocks its signals to wait for them, and a process inherits the mask. Until
        # there are replicas, SIGTERM ends the load of a backbone at once.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        supervisor, reports_to, *listeners = map(int, text.split())
        return cls(supervisor=supervisor, reports_to=reports_to, listeners=tuple(listeners))

    def __str__(self) -> str:
        return " ".join(map(str, (self.supervisor, self.reports_to, *self.listeners)))


@dataclass(slots=True, kw_only=True)
class _Template:
    process: "subprocess.Popen[bytes]"
    reports: int
    started: float = field(default_factory=time.monotonic)
    answers: bool = False
    is_ready: bool = False

    def look(self) -> None:
        if not self.is_ready and select.select([self.reports], [], [], 0)[0]:
            came = os.read(self.reports, len(ANSWERS + READY))
            self.answers |= ANSWERS in came
            self.is_ready = READY in came


def supervise(settings: ServerSettings) -> int:
    """Run a fleet until SIGTERM or SIGINT, and return the exit status.

    The templates read the settings again, from the same arguments, environment and file.
    """
    log_everything(settings.log_format)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    with ExitStack() as stack:
        # The shared port, then one of each replica; 0 is any free port.
        ports = [settings.port and settings.port + it for it in range(1 + settings.processes)]
        listeners = [stack.enter_context(bound(settings.host, port)) for port in ports]
        host, port = listeners[0].getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        announce = partial(print_address, f"http://{shown}:{port}", log_format=settings.log_format)
        delay_s = drain_delay_of(settings)
        status = Supervisor(listeners, announce=announce, drain_delay_s=delay_s).run()
    write_log()
    return status


class Supervisor:
    def __init__(
        self,
        listeners: Sequence[socket.socket],
        *,
        announce: Callable[[], None],
        drain_delay_s: float = DRAIN_DELAY_S,
    ) -> None:
        self._listeners = listeners
        self._drain_delay_s = drain_delay_s
        self._announce = announce
        self._present: _Template | None = None
        self._next: _Template | None = None
        self._leaving = list[_Template]()
        self._lost = list[int]()
        """Pipes of lost templates; their replicas go on until these are closed."""
        self._is_ending = False
        self._has_served = False
        self._not_before = 0.0
        self._taken = 0.0
        """When the drain delay ends, and later on when no connection waited at a port."""
        self._status = 0

    def run(self) -> int:
        """Serve until a signal ends the fleet, or the first template fails; return the status."""
        self._start()
        while self._templates() or not self._is_ending:
            received = signal.sigtimedwait(SIGNALS, TICK_S)
            if received is not None:
                self._obey(signal.Signals(received.si_signo))
            for template in self._templates():
                template.look()
            self._replace_if_ready()
            self._bury()
            if self._is_ending:
                self._turn_away()
            is_lost = self._present is None and self._next is None
            if is_lost and not self._is_ending and time.monotonic() >= self._not_before:
                self._start()
        self._let_go()
        return self._status

    def _templates(self) -> list[_Template]:
        return [it for it in (self._present, self._next, *self._leaving) if it is not None]

    def _start(self) -> None:
        try:
            reports, reports_to = os.pipe()
            try:
                process = self._process(reports_to)
            except OSError:
                os.close(reports)
                raise
            finally:
                os.close(reports_to)
        except OSError as error:
            # For example EAGAIN, or the virtual environment is just being replaced.
            logger.error("new processes cannot start: %s", error)  # noqa: TRY400 - no bug of ours
            self._lose(None, status=1)
        else:
            self._next = _Template(process=process, reports=reports)

    def _process(self, reports_to: int) -> "subprocess.Popen[bytes]":
        numbers = tuple(it.fileno() for it in self._listeners)
        place = ReplicaPlace(supervisor=os.getpid(), listeners=numbers, reports_to=reports_to)
        # Libraries start threads when they are imported, and a process with threads cannot fork.
        single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", PLACE_VARIABLE: str(place)}
        return subprocess.Popen(  # noqa: S603 - the command of this process itself
            [sys.executable, *sys.orig_argv[1:]],
            env=os.environ | single,
            pass_fds=(*numbers, reports_to),
            # Ctrl-C reaches the supervisor alone, which passes it on once.
            start_new_session=True,
        )

    def _obey(self, received: signal.Signals) -> None:
        if received in ENDS:
            passes_on = passed_on(received, is_ending=self._is_ending)
            self._taken = time.monotonic() + (not self._is_ending) * self._drain_delay_s
            self._is_ending = True
            self._let_go()
            for template in self._templates():
                template.process.send_signal(passes_on)
        elif received is signal.SIGHUP and not self._is_ending:
            if self._next is None:
                logger.info("SIGHUP: all processes are replaced")
                self._start()
            else:
                logger.warning("SIGHUP is ignored: new processes are starting already")

    def _replace_if_ready(self) -> None:
        if self._next is None or not self._next.is_ready or self._is_ending:
            return
        if self._present is not None:
            self._present.process.terminate()
            self._leaving.append(self._present)
        self._present, self._next = self._next, None
        self._let_go()
        if not self._has_served:
            self._has_served = True
            self._announce()

    def _bury(self) -> None:
        for template in self._templates():
            status = template.process.poll()
            if status is None:
                continue
            if template is self._present and not self._is_ending:
                self._lost.append(template.reports)
            else:
                os.close(template.reports)
            if template in self._leaving:
                self._leaving.remove(template)
                continue
            if template is self._next:
                self._next = None
            else:
                self._present = None
            self._lose(template, status=status)

    def _turn_away(self) -> None:
        """End connections that wait at ports whose processes finish only what they have begun."""
        waiting = select.select(self._listeners, (), (), 0)[0]
        if not waiting:
            self._taken = max(self._taken, time.monotonic())
        elif time.monotonic() - self._taken > UNTAKEN_S:
            for listener in waiting:
                # The error says that none waits, or that the port was never open.
                with suppress(OSError):
                    while True:
                        listener.accept()[0].close()

    def _let_go(self) -> None:
        """Let the replicas of lost templates end."""
        while self._lost:
            os.close(self._lost.pop())

    def _lose(self, lost: _Template | None, *, status: int) -> None:
        """Decide what follows the end of a template that should serve; None: it never began."""
        if self._is_ending:
            return
        was_killed = status < 0 and lost is not None and lost.answers
        if not self._has_served and not was_killed:
            if status < 0:
                logger.error("the processes were killed at their start (signal %d)", -status)
            self._status = status if status > 0 else 1
            self._is_ending = True
        elif self._present is not None:
            logger.error("the new processes failed (status %d); the old ones go on", status)
        else:
            logger.error("the processes ended (status %d); new ones start", status)
            begun = time.monotonic() if lost is None else lost.started
            self._not_before = begun + RESTART_S


def drain_delay_of(settings: ServerSettings) -> float:
    given = "drain_delay_s" in settings.model_fields_set
    return settings.drain_delay_s if given else DRAIN_DELAY_S


def passed_on(received: int, *, is_ending: bool) -> signal.Signals:
    """Return the signal for the processes below: SIGINT only if they end already, as a hurry."""
    return signal.Signals(received) if is_ending else signal.SIGTERM


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that has its address; the first replica that is ready lets it listen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        problem = f"cannot listen at {host} port {port} ({error}); change --host or --port"
        raise invalid_settings(problem) from error
    return listener
