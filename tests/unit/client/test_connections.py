"""Connections of the clients: processes, proxies, addresses, keys and retries."""

import asyncio
import contextlib
import copy
import gc
import gzip
import os
import pickle
import socket
import ssl
import threading
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import httpx
import pytest

from doubles.listeners import Exchange, listening
from nunatak_client import (
    ApiError,
    AsyncClient,
    Client,
    ConnectionFailedError,
    InvalidInputError,
    RetryPolicy,
)
from nunatak_client.errors import InvalidResponseError

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
FAILED = 3
leaves_connections = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
"""A closed event loop cannot close the connections that it leaves."""
URL = "http://tests.invalid"


class Site:
    """The address of a server, and what it has seen of each request."""

    url: str

    def __init__(self) -> None:
        self.seen = list[tuple[str, int]]()
        """Target, and the caller's port."""

    @property
    def ports(self) -> list[int]:
        return [port for _, port in self.seen]


@pytest.fixture(name="site")
def make_site(monkeypatch: pytest.MonkeyPatch) -> Generator[Site]:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    site = Site()

    class Handler(Exchange):
        protocol_version = "HTTP/1.1"

        def reply(self) -> None:
            site.seen.append((self.path, self.client_address[1]))
            self.answer(200, b"[]")

    with listening(Handler) as site.url:
        yield site


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


def headers_sent(api_key: str | None = None) -> list[str | None]:
    """The key that each client sends."""
    seen: list[str | None] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization"))
        return httpx.Response(200, json={"tasks": []})

    async def ask() -> None:
        async with AsyncClient(
            URL, api_key=api_key, transport=httpx.MockTransport(handle)
        ) as client:
            await client.tasks()

    with Client(URL, api_key=api_key, transport=httpx.MockTransport(handle)) as client:
        client.tasks()
    asyncio.run(ask())
    return seen


def test_a_forked_process_shares_no_connection_with_its_parent(site: Site) -> None:
    with Client(site.url) as client:
        assert client.is_ready()

        assert status_in_fork(lambda: client.is_ready() and client.is_ready()) == 0
        assert client.is_ready()

    parent, child, again, after = site.ports
    assert parent == after != child == again


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy])
def test_a_client_says_why_it_cannot_be_pickled(
    kind: type[Client | AsyncClient], copied: Callable[[object], object]
) -> None:
    with pytest.raises(InvalidInputError, match="make a client in each process"):
        copied(kind(URL))


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
    client = Client(URL, transport=transport)

    def is_refused() -> bool:
        with pytest.raises(InvalidInputError, match="after the fork"):
            client.is_ready()
        return True

    assert status_in_fork(is_refused) == 0
    assert client.is_ready()


@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_a_call_over_the_limit_waits_in_the_client_until_its_deadline(
    kind: type[Client | AsyncClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{kind.__module__}.MAX_AT_ONCE", 1)
    told, is_asked, answering = list[int](), threading.Semaphore(0), threading.Event()

    class Handler(Exchange):
        def reply(self) -> None:
            told.append(int(self.headers["x-deadline-ms"]))
            is_asked.release()
            answering.wait()
            self.answer(403)

    async def code(deadline_s: float) -> str:
        ask = partial(client.judge, "guard", "a", deadline_s=deadline_s)
        with pytest.raises(ApiError) as caught:
            await (ask() if kind is AsyncClient else asyncio.to_thread(ask))
        return caught.value.code

    with listening(Handler) as url:
        client: Any = kind(url)
        first = asyncio.create_task(code(60))
        await asyncio.to_thread(is_asked.acquire)
        second = asyncio.create_task(code(60))
        late = [await code(it) for it in (0, 0.2)]
        answering.set()
        assert [await first, await second] == ["http_error"] * 2
        await client.aclose() if kind is AsyncClient else client.close()

    assert late == ["deadline_exceeded"] * 2
    assert told[0] - told[1] > 200


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

    with Client(URL) as client:
        assert client.is_ready()

    assert site.seen[0][0] == "http://tests.invalid/readyz"


def test_a_server_without_tls_needs_no_certificates(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/there/is/none.pem")

    with Client(site.url) as client:
        assert client.is_ready()


def test_a_proxy_that_is_away_is_named_as_a_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")

    with (
        Client(URL, retries=0) as client,
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

    with Client(URL, transport=answers) as client:
        assert client.is_ready()
        with pytest.raises(InvalidResponseError, match="cannot be decoded"):
            client.info()


@pytest.mark.parametrize(
    "url",
    [
        *("", "localhost:8080", "ftp://host", "http://", "http://a:port", "http://a:65536", None),
        *("http://a?key=secret", "http://a/base#secret", "http://user:secret@a"),
    ],
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_address_that_is_no_http_url_is_refused(kind: type[Client | AsyncClient], url: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        kind(url)

    assert "secret" not in str(caught.value)


@pytest.fixture(name="secured")
def serve_tls() -> Generator[str]:
    """Serve TLS, and return the address with the scheme `http`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    caller, _ = server.accept()
                    with caller, contextlib.suppress(ssl.SSLError):
                        context.wrap_socket(caller, server_side=True)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def judged(client: Client) -> None:
    list(client.judge_stream("guard", ["a"]))


@pytest.mark.parametrize("ask", [Client.info, judged])
def test_a_server_of_the_other_scheme_is_named_with_its_address(
    site: Site, secured: str, ask: Callable[[Client], object]
) -> None:
    for url, scheme in (site.url.replace("http", "https"), "http"), (secured, "https"):
        hint = f"if it speaks {scheme}, use {scheme}{url[url.index(':') :]}$"
        with Client(url, retries=0) as client, pytest.raises(ConnectionFailedError, match=hint):
            ask(client)


@pytest.mark.parametrize("timeout_s", [float("inf"), float("nan"), 1e12, "5", 0, -1])
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_time_that_no_timer_can_wait_is_refused(
    kind: type[Client | AsyncClient], timeout_s: float
) -> None:
    with pytest.raises(InvalidInputError, match="timeout_s must be a number of seconds"):
        kind(timeout_s=timeout_s)


def test_the_key_of_the_environment_is_sent_unless_another_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NUNATAK_API_KEY", raising=False)
    assert headers_sent() == [None, None]

    monkeypatch.setenv("NUNATAK_API_KEY", "of-the-environment")

    assert headers_sent() == ["Bearer of-the-environment"] * 2
    assert headers_sent("given") == ["Bearer given"] * 2
    assert headers_sent("") == [None, None]


@pytest.mark.parametrize("key", ["secret\n", "se cret", "s\u00e9cret", "se\x00cret"])
def test_a_key_that_no_header_may_hold_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Client(URL, api_key=key)

    assert key not in str(caught.value)


@pytest.mark.parametrize(
    ("policy", "attempt", "at_least_s", "expected"),
    [
        *((RetryPolicy(retries=5, base_delay_s=1, max_delay_s=5, jitter=lambda: 1.0), n, 0, it)
          for n, it in enumerate((1, 2, 4, 5, 5, None))),
        (RetryPolicy(retries=10_000, jitter=lambda: 1.0), 9_999, 0, 5),
        (RetryPolicy(base_delay_s=1, jitter=lambda: 0.25), 0, 0, 0.25),
        (RetryPolicy(base_delay_s=1, jitter=lambda: 0.0), 0, 0, 0),
        (RetryPolicy(base_delay_s=1, jitter=lambda: 0.0), 0, 0.5, 0.5),
        (RetryPolicy(max_delay_s=5), 0, 6, None),
    ],
)  # fmt: skip
def test_a_delay_doubles_up_to_its_cap_and_a_wait_that_is_asked_for_is_a_lower_bound(
    policy: RetryPolicy, attempt: int, at_least_s: float, expected: float | None
) -> None:
    assert policy.delay_s(attempt, at_least_s=at_least_s) == expected
