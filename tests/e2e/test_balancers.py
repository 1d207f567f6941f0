"""The shipped files of nginx, HAProxy and Envoy, run by these programs in front of real servers."""

import re
import signal
import socket
import ssl
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from doubles.access import add_key
from doubles.lifecycles import LIMIT_S, POLL_S, Site, make_site
from doubles.listeners import Exchange, listening
from doubles.policies import make_policy, make_rule, when
from doubles.proxies import HOST, PROXIES, free_port
from doubles.tasks import LABELS
from nunatak_client import Client
from nunatak_contract.wire import StreamEvent
from nunatak_registry import Registry
from nunatak_server.settings import ServerSettings

PREDICT, ALIAS = "/v1/tasks/tone/predict", "/v1/tasks/tone/aliases/prod"
ROLLBACK = f"{ALIAS}/rollback"
MAX_BODY_BYTES = ServerSettings.model_construct().max_body_bytes
NUM_ASKED, NUM_AT_ONCE, MOST_ASKED = 6, 200, 500
STREAM_LIMIT_S = 8
"""Below the time for a whole request, after which a balancer that waits for it refuses."""
LOOPBACK = "127.0.0.1"
MANY, ASKED = "/v1/predict", {"inputs": "hi", "tasks": ["tone", "mood"]}

Proxy = Callable[..., AbstractContextManager[httpx.Client]]

pytestmark = pytest.mark.skipif(
    not PROXIES, reason="no balancer, or no openssl, is installed (apt-get install)"
)


@dataclass
class Refusing:
    """A process that drains: it refuses every request, and counts the requests."""

    place: str = ""
    """The address for a balancer."""
    num_asked: int = 0


class _Refuse(Exchange):
    protocol_version = "HTTP/1.1"

    def __init__(self, refusing: Refusing, *args: Any) -> None:  # noqa: ANN401 - of the base
        self._refusing = refusing
        super().__init__(*args)

    def reply(self) -> None:
        self.body()
        # The balancer checks with GET, and has not noticed yet.
        is_check = self.command == "GET"
        self._refusing.num_asked += not is_check
        self.answer(200 if is_check else 503)


@pytest.fixture(params=sorted(PROXIES))
def proxy(request: pytest.FixtureRequest) -> Proxy:
    return PROXIES[request.param]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return make_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def keyed(site: Site) -> Generator[tuple[str, dict[str, str]]]:
    """The place of a server with keys, and the headers of an allowed caller."""
    keys = site.faults / "keys.json"
    allowed = add_key(keys, "support")
    with site.server(api_keys_file=keys) as server:
        yield place_of(server.address), allowed


@pytest.fixture(scope="module")
def place(site: Site) -> Generator[str]:
    """The place of a server without keys."""
    with site.server() as server:
        yield place_of(server.address)


@pytest.fixture
def refusing() -> Generator[Refusing]:
    found = Refusing()
    with listening(partial(_Refuse, found)) as address:
        found.place = place_of(address)
        yield found


def place_of(address: str) -> str:
    return address.removeprefix("http://")


def test_the_shipped_file_serves_what_it_promises(
    site: Site, keyed: tuple[str, dict[str, str]], tmp_path: Path, proxy: Proxy
) -> None:
    place, allowed = keyed
    with proxy(tmp_path / "proxy", *[place] * 2) as client:
        assert client.get("/readyz").status_code == 200
        check_answers(client, allowed)
        check_sites(client, allowed)
        check_size(client, allowed)
        check_stream(client, site, allowed)
        check_protocol(client)


def check_answers(client: httpx.Client, allowed: dict[str, str]) -> None:
    """Keys are passed on, and the server's log has the id of each request."""
    body = {"inputs": "hi"}
    answer = client.post(PREDICT, json=body, headers=allowed)
    stranger = client.post(PREDICT, json=body)
    names = {answer.headers["x-request-id"], stranger.headers["x-request-id"]}

    assert (answer.status_code, stranger.status_code) == (200, 401)
    assert {item["label"] for item in answer.json()["outputs"]}
    assert len(names) == 2
    assert all(re.fullmatch("[0-9a-f-]{32,36}", name) for name in names)


def check_sites(client: httpx.Client, allowed: dict[str, str]) -> None:
    """The server knows its public name from the proxy, so it accepts calls of its own page."""
    for origin, status in ((HOST, 200), ("elsewhere.example", 403)):
        headers = {**allowed, "origin": f"https://{origin}"}
        answer = client.post(PREDICT, json={"inputs": "hi"}, headers=headers)
        assert answer.status_code == status


def check_size(client: httpx.Client, allowed: dict[str, str]) -> None:
    """Bodies pass up to the limit of the server."""
    headers = {**allowed, "content-type": "application/json"}
    start = b'{"inputs": "hi"'
    for num_bytes, status in ((MAX_BODY_BYTES, 200), (MAX_BODY_BYTES + 1, 413)):
        body = start + b" " * (num_bytes - len(start) - 1) + b"}"
        assert client.post(PREDICT, content=body, headers=headers).status_code == status


def check_stream(client: httpx.Client, site: Site, allowed: dict[str, str]) -> None:
    """A line comes as soon as the server has it, while another waits for the device."""
    site.hold(is_held=True)
    try:
        with client.stream(
            "POST",
            "/v1/predict",
            json={"inputs": "a new text", "tasks": ["nope", "tone"]},
            headers={**allowed, "accept": "application/x-ndjson"},
        ) as answer:
            lines = answer.iter_lines()
            first = next(lines)
            site.hold(is_held=False)
            rest = list(lines)
    finally:
        site.hold(is_held=False)
    assert "task_not_found" in first
    assert any('"tone"' in line for line in rest)


def check_protocol(client: httpx.Client) -> None:
    """Callers can use HTTP/2, and must use a current version of TLS."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection(("127.0.0.1", client.base_url.port or 443)) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as connection,
    ):
        assert connection.selected_alpn_protocol() == "h2"
        assert connection.version() in {"TLSv1.2", "TLSv1.3"}


def test_a_text_is_judged_while_it_arrives(
    site: Site, place: str, tmp_path: Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Registry.open(site.registry, create=False) as registry:
        registry.policies.put(make_policy(make_rule(when("tone", LABELS[0], threshold=1.0))))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "proxy" / "tls.crt"))
    events = list[StreamEvent]()

    def chunks() -> Generator[str]:
        """Yield words until something of them is released."""
        ends_at = time.monotonic() + STREAM_LIMIT_S
        while not events:
            assert time.monotonic() < ends_at, "nothing is released while the text arrives"
            yield "please come at once "
            time.sleep(POLL_S)

    with proxy(tmp_path / "proxy", place, place) as client, Client(str(client.base_url)) as asker:
        for event in asker.judge_stream("guard", chunks()):
            events.append(event)

    assert events[-1].final


@pytest.mark.parametrize(("method", "path"), [("POST", ROLLBACK), ("PUT", ALIAS)])
def test_a_prediction_goes_on_to_another_process_and_a_change_does_not(
    place: str, refusing: Refusing, tmp_path: Path, proxy: Proxy, method: str, path: str
) -> None:
    statuses = list[int]()
    with proxy(tmp_path / "proxy", place, refusing.place) as client, ThreadPoolExecutor(8) as many:
        # The process that refuses at once is idle, so a balancer that looks for that prefers it.
        asked = [many.submit(client.post, MANY, json=ASKED) for _ in range(NUM_AT_ONCE)]
        predicted = {it.result().status_code for it in asked}
        assert refusing.num_asked > 0
        refusing.num_asked = 0
        # Until the refusing process was asked too, which Envoy chooses by chance.
        while len(statuses) < NUM_ASKED or not 0 < refusing.num_asked < len(statuses):
            assert len(statuses) < MOST_ASKED
            statuses.append(client.request(method, path, json={}).status_code)

    assert predicted == {200}
    assert statuses.count(503) == refusing.num_asked


@pytest.fixture(params=["ended", "hangs"])
def gone(request: pytest.FixtureRequest) -> Generator[str]:
    """The place of a process that has ended, or of one that takes no connection any more."""
    if request.param == "ended":
        yield f"{LOOPBACK}:{free_port()}"
        return
    with socket.create_server((LOOPBACK, 0), backlog=0) as silent, ExitStack() as held:
        for _ in range(4):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)  # noqa: FBT003 - of the standard library
            waiting.connect_ex(silent.getsockname())
        yield f"{LOOPBACK}:{silent.getsockname()[1]}"


def test_a_process_that_is_gone_is_left_out(
    place: str, gone: str, tmp_path: Path, proxy: Proxy
) -> None:
    with proxy(tmp_path / "proxy", gone, place) as client:
        predicted = [client.post(PREDICT, json={"inputs": "hi"}) for _ in range(NUM_ASKED)]
        rolled_back = [client.post(ROLLBACK, json={}) for _ in range(NUM_ASKED)]

    assert {answer.status_code for answer in predicted} == {200}
    # The dead process has received nothing, so each request reaches one server only once.
    assert {answer.json()["code"] for answer in rolled_back} == {"alias_not_found"}


@pytest.mark.skipif("haproxy" not in PROXIES, reason="HAProxy is not installed (apt-get)")
def test_a_reload_leaves_a_connection_open_until_its_next_answer(
    place: str, tmp_path: Path
) -> None:
    with PROXIES["haproxy"](tmp_path / "proxy", place, place) as client:
        client.post(PREDICT, json={"inputs": "hi"}).raise_for_status()
        (balancer,) = [it for it in psutil.Process().children() if it.name() == "haproxy"]
        # What a master sends to the process before the reload.
        balancer.send_signal(signal.SIGUSR1)
        ends_at = time.monotonic() + LIMIT_S
        while listens(client.base_url.port):
            assert time.monotonic() < ends_at, "the balancer takes new connections"
            time.sleep(POLL_S)
        answer = client.post(PREDICT, json={"inputs": "hi"})

    assert (answer.status_code, answer.headers["connection"]) == (200, "close")


def listens(port: int | None) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0
