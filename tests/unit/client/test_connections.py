"""Connections of the clients: forks, event loops, and the proxies and certificates of users."""

import asyncio
import gc
import gzip
import json
import os
import threading
from collections.abc import Callable, Generator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from nunatak_client import AsyncClient, Client, ConnectionFailedError, InvalidInputError
from nunatak_client.errors import InvalidResponseError

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
FAILED = 3
leaves_connections = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
"""A closed event loop cannot close the connections that it leaves."""


class Site:
    """A server that notes the address and the connection of each request."""

    def __init__(self) -> None:
        self.seen = list[tuple[str, int]]()
        """Target, and the caller's port."""
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                site.seen.append((self.path, self.client_address[1]))
                body = json.dumps([self.path]).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *_: object) -> None:  # noqa: A002
                """Write nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def ports(self) -> list[int]:
        return [port for _, port in self.seen]


@pytest.fixture(name="site")
def make_site(monkeypatch: pytest.MonkeyPatch) -> Generator[Site]:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    site = Site()
    yield site
    site.close()


def asks_twice(client: AsyncClient) -> bool:
    """Ask in an event loop of its own."""

    async def ask() -> bool:
        return await client.is_ready() and await client.is_ready()

    return asyncio.run(ask())


def status_in_fork(ask: Callable[[], bool]) -> int:
    """Return the status of a forked process: 0 if `ask` says so."""
    child = os.fork()
    if child == 0:
        status = FAILED
        try:
            status = 0 if ask() else 1
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(ended)


def test_a_forked_process_shares_no_connection_with_its_parent(site: Site) -> None:
    with Client(site.url) as client:
        assert client.is_ready()

        assert status_in_fork(lambda: client.is_ready() and client.is_ready()) == 0
        assert client.is_ready()

    parent, child, again, after = site.ports
    assert parent == after != child == again


@leaves_connections
def test_an_asyncio_client_made_before_a_fork_works_in_both_processes(site: Site) -> None:
    client = AsyncClient(site.url)
    assert asks_twice(client)

    assert status_in_fork(partial(asks_twice, client)) == 0
    assert asks_twice(client)

    assert len(set(site.ports)) == 3
    del client
    gc.collect()


def test_a_client_with_its_own_transport_is_refused_after_a_fork() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200))
    client = Client("http://tests.invalid", transport=transport)

    def is_refused() -> bool:
        with pytest.raises(InvalidInputError, match="after the fork"):
            client.is_ready()
        return True

    assert status_in_fork(is_refused) == 0
    assert client.is_ready()


@leaves_connections
def test_an_asyncio_client_serves_one_event_loop_after_another(site: Site) -> None:
    client = AsyncClient(site.url)

    assert [asks_twice(client) for _ in range(3)] == [True] * 3

    ports = site.ports
    assert ports[::2] == ports[1::2]
    assert len(set(ports)) == 3
    del client
    gc.collect()


def test_servers_of_this_machine_are_reached_without_the_proxy(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")

    for host in ("127.0.0.1", "localhost"):
        with Client(site.url.replace("127.0.0.1", host)) as client:
            assert client.is_ready()

    assert {path for path, _ in site.seen} == {"/readyz"}


def test_other_servers_are_reached_through_the_proxy_of_the_environment(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", site.url.removeprefix("http://"))

    with Client("http://tests.invalid") as client:
        assert client.is_ready()

    assert site.seen[0][0] == "http://tests.invalid/readyz"


def test_a_proxy_that_is_away_is_named_as_a_cause(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", site.url)
    site.close()

    with (
        Client("http://tests.invalid", retries=0) as client,
        pytest.raises(ConnectionFailedError, match="and the proxy of the environment running"),
    ):
        client.info()


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HTTP_PROXY", "ftp://127.0.0.1:9"),
        ("HTTPS_PROXY", "http://127.0.0.1:port"),
        ("NO_PROXY", "[::1"),
        ("SSL_CERT_FILE", "/there/is/none.pem"),
    ],
)
def test_an_environment_that_cannot_be_used_is_named(
    kind: type[Client | AsyncClient], name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(InvalidInputError, match=name):
        kind("https://tests.invalid")


def test_a_compressed_answer_is_read_and_a_damaged_one_is_named() -> None:
    whole = gzip.compress(b'{"version": "1", "device": "cpu"}')
    bodies = iter([whole, whole[:20] + b"x" * 20])
    headers = {"content-encoding": "gzip"}
    answers = httpx.MockTransport(
        lambda _: httpx.Response(200, headers=headers, stream=httpx.ByteStream(next(bodies)))
    )

    with Client("http://tests.invalid", transport=answers) as client:
        assert client.is_ready()
        with pytest.raises(InvalidResponseError, match="cannot be decoded"):
            client.info()
