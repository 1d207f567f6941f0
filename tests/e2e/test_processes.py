"""`nunatak serve --processes`: real processes that share a port and the memory of the backbone."""

import http.client
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest

from doubles.lifecycles import LIMIT_S, POLL_S, Site, make_site
from doubles.processes import COMMAND, ServerProcess, server_process
from nunatak_contract.wire import REPLICA_HEADER
from nunatak_registry import Registry
from nunatak_server.processes.supervisor import DRAIN_DELAY_S

PATH = "/v1/tasks/tone/predict"
BODY = json.dumps({"inputs": "hi"})
HEADERS = {"content-type": "application/json"}
OK = 200
NUM = 2
pytestmark = pytest.mark.slow


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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return make_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "log"


@pytest.fixture(scope="module")
def fleet(site: Site, log: Path) -> Generator[SharedPort]:
    """A fleet that all tests use in turn, so each leaves it whole."""
    own = site.registry, site.backbone
    with shared_port(*own, processes=NUM, log=log, log_format="json") as found:
        yield found


def test_all_processes_answer_at_one_port_and_each_is_a_replica_with_a_log(
    fleet: SharedPort, site: Site, log: Path
) -> None:
    names = fleet.names(at_least=NUM)

    with Registry.open(site.registry) as registry:
        listed = {it.id: it.address for it in registry.replicas.listing().replicas}
    assert len(fleet.replicas()) == NUM
    assert names <= listed.keys()
    assert len({listed[name] for name in names}) == NUM
    wait_until(lambda: log.read_text().count('"event": "configuration"') >= NUM)
    shown = [it for it in log.read_text().splitlines() if '"event": "configuration"' in it]
    ports = {f"{listed[name].rpartition(':')[2]} (of this process)" for name in names}
    assert ports <= {json.loads(it)["port"] for it in shown}


def test_metrics_come_from_the_own_port_of_a_process_alone(fleet: SharedPort, site: Site) -> None:
    (name, *_) = fleet.names(at_least=1)
    with Registry.open(site.registry) as registry:
        (address,) = (it.address for it in registry.replicas.listing().replicas if it.id == name)
    own = f"http://127.0.0.1:{address.rpartition(':')[2]}"

    refused = httpx.get(f"{fleet.server.address}/metrics")
    counted = httpx.get(f"{own}/metrics")

    assert (refused.status_code, refused.json()["code"]) == (421, "shared_port")
    assert counted.headers["x-replica-id"] == name
    assert "nunatak_requests_total" in counted.text


def test_no_request_fails_while_all_processes_are_replaced(fleet: SharedPort) -> None:
    before, old = fleet.names(at_least=NUM), fleet.replicas()

    with asking(fleet.port) as callers:
        fleet.server.send(signal.SIGHUP)
        wait_until(lambda: not any(it.is_running() for it in old))
    after = fleet.names(at_least=NUM)

    assert callers.num_failed == 0
    assert callers.statuses.total() > 0
    assert before.isdisjoint(after)


def test_a_killed_process_is_replaced_and_the_others_answer(fleet: SharedPort) -> None:
    killed, *others = fleet.replicas()

    killed.kill()
    wait_until(lambda: len(fleet.replicas()) == NUM and killed not in fleet.replicas())

    assert fleet.names(at_least=NUM)
    assert set(others) < set(fleet.replicas())


def test_a_killed_template_is_replaced_and_its_processes_answer_until_then(
    fleet: SharedPort,
) -> None:
    (killed,), before = fleet.templates(), fleet.names(at_least=NUM)
    orphans, answered = fleet.replicas(), list[str]()

    def has_others() -> bool:
        found = httpx.post(fleet.server.address + PATH, content=BODY, headers=HEADERS, timeout=2)
        assert found.status_code == OK
        answered.append(found.headers[REPLICA_HEADER])
        return answered[-1] not in before

    killed.kill()
    begun = time.monotonic()
    wait_until(has_others)

    # The new processes take longer to load than the killed ones would drain.
    assert time.monotonic() > begun + DRAIN_DELAY_S
    assert answered[0] in before
    assert len(fleet.replicas()) == NUM
    wait_until(lambda: not any(it.is_running() for it in orphans))
    assert before.isdisjoint(fleet.names(at_least=NUM))


def test_sigterm_ends_all_processes_after_the_requests_in_flight(fleet: SharedPort) -> None:
    everyone = [*fleet.templates(), *fleet.replicas()]
    with asking(fleet.port, callers=2) as callers:
        wait_until(lambda: callers.statuses.total() > 0)
        fleet.server.process.terminate()
        wait_until(lambda: callers.num_cut > 0)

    assert fleet.server.wait(timeout=LIMIT_S) == 0
    assert set(callers.statuses) == {200}
    assert not any(it.is_running() for it in everyone)


def test_no_process_outlives_a_killed_supervisor(site: Site) -> None:
    with shared_port(site.registry, site.backbone, processes=NUM) as fleet:
        everyone = [*fleet.templates(), *fleet.replicas()]
        fleet.server.process.kill()
        wait_until(lambda: not any(it.is_running() for it in everyone))

    assert len(everyone) == 1 + NUM
