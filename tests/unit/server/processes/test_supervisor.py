"""The supervisor of a local fleet: what follows the end of a template, and a start that fails."""

import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Mapping

import pytest

from nunatak_server.processes import supervisor
from nunatak_server.processes.supervisor import ANSWERS, PLACE_VARIABLE, READY, Supervisor

GONE = FileNotFoundError(2, "No such file or directory", "/venv/bin/python")
Step = signal.Signals | Callable[[], None]


class FakeTemplate:
    """A template process; a test tells it what to report, and when to end."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        _, reports_to, *_ = map(int, environment[PLACE_VARIABLE].split())
        self._reports_to = os.dup(reports_to)
        self._status: int | None = None
        self.received = list[signal.Signals]()
        self.is_busy = False
        """Whether a request in flight keeps it from ending by a signal."""

    def report(self, *reports: bytes) -> None:
        os.write(self._reports_to, b"".join(reports))

    def end(self, status: int) -> None:
        os.close(self._reports_to)
        self._status = status

    def poll(self) -> int | None:
        return self._status

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def send_signal(self, received: signal.Signals) -> None:
        self.received.append(received)
        if self._status is None and not self.is_busy:
            self.end(0)


class Scene:
    """The world of a supervisor: its templates, and one step of a test for each of its turns."""

    port: socket.socket
    """The port that the supervisor owns, while it runs."""

    def __init__(self) -> None:
        self.templates = list[FakeTemplate]()
        self.failures = deque[OSError | None]()
        """What each start meets; None, and later on: nothing."""
        self.num_announced = 0
        self._steps = deque[Step]()

    def start(self, _: object, env: Mapping[str, str], **__: object) -> FakeTemplate:
        failure = self.failures.popleft() if self.failures else None
        if failure is not None:
            raise failure
        self.templates.append(FakeTemplate(env))
        return self.templates[-1]

    def next_signal(self, *_: object) -> object:
        step = self._steps.popleft() if self._steps else signal.SIGTERM
        if not isinstance(step, signal.Signals):
            step()
            return None
        return type("Received", (), {"si_signo": step})

    def announce(self) -> None:
        self.num_announced += 1

    def run(self, *steps: Step) -> int:
        """Run a supervisor, which gets SIGTERM after the steps."""
        self._steps.extend(steps)
        with socket.socket() as self.port:
            return Supervisor([self.port], announce=self.announce, drain_delay_s=0).run()

    def report(self, *reports: bytes) -> Callable[[], None]:
        """Return the step in which the latest template reports."""
        return lambda: self.templates[-1].report(*reports)

    def end(self, status: int) -> Callable[[], None]:
        """Return the step in which the latest template ends."""
        return lambda: self.templates[-1].end(status)


@pytest.fixture(name="scene")
def make_scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene()
    monkeypatch.setattr(subprocess, "Popen", scene.start)
    monkeypatch.setattr(signal, "sigtimedwait", scene.next_signal)
    monkeypatch.setattr(supervisor, "RESTART_S", 0.0)
    return scene


def num_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - numbers, no paths


def test_new_processes_that_cannot_start_leave_the_old_ones_in_place(scene: Scene) -> None:
    scene.failures.extend([None, GONE])
    before, alive = num_files(), list[bool]()

    def look() -> None:
        alive.append(scene.templates[0].poll() is None)

    status = scene.run(scene.report(ANSWERS, READY), signal.SIGHUP, look, signal.SIGHUP, look)

    assert status == 0
    assert alive == [True, True]
    assert len(scene.templates) == 2
    assert num_files() == before


def test_lost_processes_start_again_until_a_start_succeeds(scene: Scene) -> None:
    scene.failures.extend([None, GONE, BlockingIOError(11, "no process is left"), None])
    wait = (lambda: None,) * 3

    assert scene.run(scene.report(ANSWERS, READY), scene.end(-9), *wait) == 0

    assert len(scene.templates) == 2
    assert scene.num_announced == 1


@pytest.mark.parametrize(
    ("reports", "status", "starts", "ended"),
    [
        pytest.param([], -9, 1, 1, id="killed-before-anyone-was-answered"),
        pytest.param([], 3, 1, 3, id="failed-before-anyone-was-answered"),
        pytest.param([ANSWERS], -9, 2, 0, id="killed-while-the-first-answers"),
        pytest.param([ANSWERS], 3, 1, 3, id="failed-while-the-first-answers"),
        pytest.param([ANSWERS, READY], -9, 2, 0, id="killed-while-all-answer"),
        pytest.param([ANSWERS, READY], 3, 2, 0, id="failed-while-all-answer"),
    ],
)
def test_a_fleet_ends_with_its_first_template_only_if_its_settings_may_be_at_fault(
    scene: Scene, reports: list[bytes], status: int, starts: int, ended: int
) -> None:
    def report_and_end() -> None:
        scene.templates[-1].report(*reports)
        scene.templates[-1].end(status)

    assert scene.run(report_and_end, lambda: None) == ended

    assert len(scene.templates) == starts


def test_a_first_template_that_cannot_start_ends_the_fleet(scene: Scene) -> None:
    scene.failures.append(GONE)
    before = num_files()

    assert scene.run() == 1

    assert scene.templates == []
    assert num_files() == before


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_only_a_second_sigint_hurries_the_processes(
    scene: Scene, first: signal.Signals, second: signal.Signals
) -> None:
    def keep_busy() -> None:
        scene.templates[0].is_busy = True

    scene.run(scene.report(ANSWERS, READY), keep_busy, first, second, scene.end(0))

    assert scene.templates[0].received == [signal.SIGTERM, second]


def test_a_connection_that_no_process_takes_is_ended_while_a_fleet_ends(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "UNTAKEN_S", 0.0)
    caller = socket.socket()

    def call() -> None:
        scene.templates[0].is_busy = True
        scene.port.bind(("127.0.0.1", 0))
        scene.port.listen()
        scene.port.settimeout(0)
        caller.connect(scene.port.getsockname())

    def hear() -> None:
        caller.settimeout(1)
        assert caller.recv(1) == b""
        scene.templates[0].end(0)

    with caller:
        wait = (lambda: None,) * 2
        scene.run(scene.report(ANSWERS, READY), call, signal.SIGTERM, *wait, hear)
