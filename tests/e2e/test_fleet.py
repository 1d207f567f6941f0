"""A fleet under load: real processes, PostgreSQL and HAProxy."""

import contextlib
import shutil
import signal
import socket
import ssl
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from doubles.backbones import save_tiny_backbone
from doubles.lifecycles import LIMIT_S
from doubles.postgres import PostgresServer
from doubles.processes import ServerProcess, server_process
from doubles.proxies import HOST, PROXIES, free_port, haproxy
from doubles.tasks import LABELS, logits_alone, publish_tiny_task
from nunatak_contract.errors import NunatakError
from nunatak_model import load_backbone
from nunatak_registry import Registry

TEXT: Final = "where is my parcel?"
TASK: Final = "tone"
NUM_VERSIONS: Final = 8
TOLERANCE: Final = 1e-4
SOCKET: Final = ".s.PGSQL.5432"
NO_ANSWER: Final = 0
NUM_CALLERS: Final = 6
NUM_REPLICAS: Final = 2
Oracle = Mapping[int, Mapping[str, float]]
"""The logits of each version for `TEXT`, by label."""
LEASE_S = 6
AFTER_S = 2.0
"""Time of load after an event."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("haproxy" not in PROXIES, reason="HAProxy is not installed (apt-get)"),
]


class Wire:
    """A socket that passes everything on to PostgreSQL, unless it is cut."""

    def __init__(self, target: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="nunatak-wire-"))
        self._target = str(target / SOCKET)
        self._passes = threading.Event()
        self._passes.set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.folder / SOCKET))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Hold everything back, as a network does that loses every packet."""
        self._passes.clear()

    def mend(self) -> None:
        self._passes.set()

    def close(self) -> None:
        self._passes.set()
        self._listener.close()
        shutil.rmtree(self.folder)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(near,), daemon=True).start()

    def _pass_on(self, near: socket.socket) -> None:
        far = socket.socket(socket.AF_UNIX)
        with near, far, contextlib.suppress(OSError):
            far.connect(self._target)
            back = threading.Thread(target=self._pump, args=(far, near), daemon=True)
            back.start()
            self._pump(near, far)
            back.join()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                self._passes.wait()
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@dataclass(kw_only=True)
class Fleet:
    """Replicas of one registry, each with its own wire, and the registry of the operator."""

    registry: Registry
    oracle: Oracle
    backbone: Path
    locations: Sequence[str]
    settings: dict[str, Any]
    wires: Sequence[Wire]
    stack: ExitStack
    ports: list[int] = field(default_factory=list[int])
    running: dict[int, ServerProcess] = field(default_factory=dict[int, ServerProcess])

    def start(self, index: int) -> None:
        """Start a replica, and wait until it is ready."""
        self.running[index] = self.stack.enter_context(
            server_process(
                registry=self.locations[index],
                backbone=self.backbone,
                port=self.ports[index],
                replica_id=f"r{index}",
                access_log=False,
                **self.settings,
            )
        )

    def restart(self, index: int) -> None:
        """Ask a replica to end, wait for its end, and start it again."""
        process = self.running[index]
        process.send(signal.SIGTERM)
        process.wait(timeout=LIMIT_S)
        self.start(index)

    @property
    def places(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports]


@contextlib.contextmanager
def running_fleet(folder: Path, postgres: PostgresServer, **settings: object) -> Generator[Fleet]:
    """Publish `NUM_VERSIONS` versions of one task, promote the first, and start the replicas."""
    folder.mkdir()
    backbone = load_backbone(save_tiny_backbone(folder / "backbone"))
    direct = f"{postgres.create_database()}&blobs={folder / 'blobs'}"
    oracle = dict[int, dict[str, float]]()
    with ExitStack() as stack:
        registry = stack.enter_context(Registry.open(direct))
        for seed in range(NUM_VERSIONS):
            manifest = publish_tiny_task(registry, backbone, task=TASK, seed=seed)
            (logits,) = logits_alone(backbone, [TEXT], seed=seed)
            oracle[manifest.version] = dict(zip(LABELS, logits, strict=True))
        registry.promote(TASK, "prod", 1)
        wires = [Wire(postgres.socket_folder) for _ in range(NUM_REPLICAS)]
        for wire in wires:
            stack.callback(wire.close)
        fleet = Fleet(
            registry=registry,
            oracle=oracle,
            backbone=folder / "backbone",
            locations=[direct.replace(str(postgres.socket_folder), str(it.folder)) for it in wires],
            settings=settings,
            wires=wires,
            stack=stack.enter_context(ExitStack()),
            ports=[free_port() for _ in wires],
        )
        with ThreadPoolExecutor() as pool:
            list(pool.map(fleet.start, range(NUM_REPLICAS)))
        yield fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One request: its times, its status or `NO_ANSWER`, and the version that answered."""

    started: float
    ended: float
    status: int
    version: int = 0
    is_right: bool = True
    """Whether the scores are those of the version that the answer names."""
    replica: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A promotion: when the operator began it, and when the operator could rely on it."""

    begun: float
    returned: float
    version: int


class Load:
    """Callers on threads, each with one connection, who ask the task until the end."""

    def __init__(self, port: int, trusted: ssl.SSLContext, oracle: Oracle) -> None:
        self._port = port
        self._trusted = trusted
        self._oracle = oracle
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(NUM_CALLERS)
        self._asking = [self._pool.submit(self._ask, number) for number in range(NUM_CALLERS)]
        self.num_answers = 0

    def wait_for(self, num_answers: int) -> None:
        """Return once as many requests have ended."""
        while self.num_answers < num_answers:
            time.sleep(0.05)

    def end(self) -> list[Answered]:
        """End the callers, and return all requests by their start."""
        self._is_over.set()
        found = [it for asking in self._asking for it in asking.result()]
        self._pool.shutdown()
        return sorted(found, key=lambda it: it.started)

    def _ask(self, number: int) -> list[Answered]:
        """Ask by the route of one task or of several."""
        body: dict[str, Any] = {"inputs": TEXT, "parameters": {"function_to_apply": "none"}}
        path = f"/v1/tasks/{TASK}/predict"
        if number % 2:
            path, body = "/v1/predict", {**body, "tasks": [TASK]}
        found, place = list[Answered](), f"https://127.0.0.1:{self._port}"
        with httpx.Client(
            base_url=place, verify=self._trusted, headers={"host": HOST}, timeout=LIMIT_S
        ) as client:
            while not self._is_over.is_set():
                started = time.monotonic()
                try:
                    answer = client.post(path, json=body)
                except httpx.TransportError:
                    ended = time.monotonic()
                    found.append(Answered(started=started, ended=ended, status=NO_ANSWER))
                else:
                    found.append(self._judged(started, answer))
                self.num_answers += 1
        return found

    def _judged(self, started: float, answer: httpx.Response) -> Answered:
        ended, status = time.monotonic(), answer.status_code
        replica = answer.headers.get("x-replica-id", "")
        told = answer.json() if status == HTTPStatus.OK else {}
        result = told.get("results", [told])[0]
        if "outputs" not in result:
            status = result.get("error", {}).get("status", status)
            return Answered(started=started, ended=ended, status=status, replica=replica)
        expected = self._oracle[result["version"]]
        given = {it["label"]: it["score"] for it in result["outputs"]}
        is_right = given.keys() == expected.keys() and all(
            abs(given[label] - expected[label]) <= TOLERANCE for label in expected
        )
        return Answered(
            started=started,
            ended=ended,
            status=status,
            version=result["version"],
            is_right=is_right,
            replica=replica,
        )


@contextlib.contextmanager
def loaded(folder: Path, fleet: Fleet, changed: Callable[[str], str] = str) -> Generator[Load]:
    """Put HAProxy with the shipped file before the replicas, and let callers ask through it."""
    with haproxy(folder, *fleet.places, changed=changed) as client:
        trusted = ssl.create_default_context(cafile=folder / "tls.crt")
        port = client.base_url.port
        assert port is not None
        load = Load(port, trusted, fleet.oracle)
        try:
            yield load
        finally:
            load.end()


def without_retries(text: str) -> str:
    """Return the shipped file without its retries: a negative control."""
    lines = (it for it in text.splitlines(keepends=True) if "retry-on" not in it)
    return "".join(lines).replace("retries 2", "retries 0").replace("option redispatch 1", "")


def moves_of(fleet: Fleet, load: Load, num_answers: int) -> list[Move]:
    """Promote one version after another until the callers have so many answers."""
    number = fleet.registry.resolve(TASK).version
    moves = [Move(begun=0.0, returned=0.0, version=number)]
    while load.num_answers < num_answers:
        number += 1
        moves.append(promote(fleet, 1 + (number - 1) % NUM_VERSIONS))
        time.sleep(0.2)
    return moves


def promote(fleet: Fleet, version: int) -> Move:
    """Promote a version, and wait for the replicas; a wait may end in vain."""
    begun = time.monotonic()
    fleet.registry.promote(TASK, "prod", version)
    with contextlib.suppress(NunatakError):
        fleet.registry.replicas.wait(30)
    return Move(begun=begun, returned=time.monotonic(), version=version)


def stale(answers: Sequence[Answered], moves: Sequence[Move]) -> list[Answered]:
    """Return the answers whose version was over before the request began.

    A request may get the version of the last promotion that had returned, or of any later one that
    began before the answer.
    """
    returned, found = [it.returned for it in moves], list[Answered]()
    for answer in answers:
        last = bisect_right(returned, answer.started) - 1
        later = (it.version for it in moves[last:] if it.begun <= answer.ended)
        if answer.status == HTTPStatus.OK and answer.version not in set(later):
            found.append(answer)
    return found


def failed(answers: Sequence[Answered]) -> list[Answered]:
    """Return the requests without an answer of the task."""
    return [it for it in answers if it.status != HTTPStatus.OK]


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer
) -> Generator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet") / "site"
    with running_fleet(
        folder, postgres_server, registry_lease_s=LEASE_S, drain_delay_s=3
    ) as running:
        yield running


def test_no_answer_is_of_the_old_version_after_a_promotion_that_waits(
    fleet: Fleet, tmp_path: Path
) -> None:
    with loaded(tmp_path / "proxy", fleet) as load:
        moves = moves_of(fleet, load, 1500)
        answers = load.end()

    assert failed(answers) == []
    assert all(it.is_right for it in answers)
    assert len({it.replica for it in answers}) == 2
    assert len({it.version for it in answers}) > 2
    assert stale(answers, moves) == []


def test_a_replica_that_has_lost_its_registry_gives_no_old_answer(
    fleet: Fleet, tmp_path: Path
) -> None:
    with loaded(tmp_path / "proxy", fleet) as load:
        load.wait_for(100)
        fleet.wires[0].cut()
        moves = [promote(fleet, 1), promote(fleet, 2)]
        time.sleep(AFTER_S)
        fleet.wires[0].mend()
        wait_for_both(fleet)
        time.sleep(AFTER_S)
        answers = load.end()

    assert failed(answers) == []
    assert stale([it for it in answers if it.started > moves[0].returned], moves) == []
    assert {it.replica for it in answers if it.started > moves[1].returned} == {"r0", "r1"}


def test_a_killed_replica_loses_no_request(fleet: Fleet, tmp_path: Path) -> None:
    for changed, may_fail in ((str, False), (without_retries, True)):
        with loaded(tmp_path / f"proxy-{may_fail}", fleet, changed) as load:
            load.wait_for(200)
            fleet.running[0].process.kill()
            time.sleep(AFTER_S)
            answers = load.end()
        fleet.start(0)

        assert bool(failed(answers)) is may_fail
        assert all(it.is_right for it in answers)


def test_a_rolling_restart_fails_no_request(fleet: Fleet, tmp_path: Path) -> None:
    with loaded(tmp_path / "proxy", fleet) as load:
        for index in range(2):
            fleet.restart(index)
            wait_for_both(fleet)
        time.sleep(AFTER_S)
        answers = load.end()

    assert failed(answers) == []
    assert {it.replica for it in answers} == {"r0", "r1"}


def test_a_restart_of_postgresql_fails_no_request(
    fleet: Fleet, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    with loaded(tmp_path / "proxy", fleet) as load:
        load.wait_for(100)
        postgres_server.restart()
        time.sleep(AFTER_S)
        moves = [promote(fleet, 3)]
        time.sleep(AFTER_S)
        answers = load.end()

    assert failed(answers) == []
    assert stale([it for it in answers if it.started > moves[0].returned], moves) == []


def wait_for_both(fleet: Fleet) -> None:
    """Wait until both replicas are listed with a live row and follow."""
    ends_at = time.monotonic() + LIMIT_S
    while True:
        assert time.monotonic() < ends_at
        try:
            listed = fleet.registry.replicas.listing().replicas
        except NunatakError:
            listed = ()
        if len(listed) == 2 and all(it.is_current and it.load.ready for it in listed):
            return
        time.sleep(0.05)
