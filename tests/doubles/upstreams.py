"""A server of decisions over real HTTP that answers as a test tells it."""

import contextlib
import json
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[dict[str, Any]], object]


@dataclass
class Raw:
    """A head and a body, after which the connection ends."""

    headers: dict[str, str]
    body: bytes = b""
    status: int = 200


@dataclass
class FakeUpstream:
    """What the server says and has heard; `reply` returns JSON, bytes, or the number of a status.

    A reply of None breaks the connection before the head, and a `Raw` reply is sent as it is.
    """

    reply: Reply
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    gate: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    upstream: FakeUpstream
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.upstream.bodies.append(body)
        self.upstream.headers.append({name.lower(): it for name, it in self.headers.items()})
        self.upstream.gate.wait(30)
        found = self.upstream.reply(body)
        if found is None:
            self.close_connection = True
            return
        if isinstance(found, Raw):
            self.close_connection = True
            self.send_response(found.status)
            for name, value in found.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(found.body)
            return
        status = found if isinstance(found, int) else 200
        data = found if isinstance(found, bytes) else json.dumps(found).encode()
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
        """Stay silent."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Stay silent about clients that have gone."""


@contextlib.contextmanager
def running_upstream(reply: Reply, path: str = "/v1/systemone") -> Generator[FakeUpstream]:
    upstream = FakeUpstream(reply)
    upstream.gate.set()
    handler = type("Handler", (_Handler,), {"upstream": upstream})
    with _Server(("127.0.0.1", 0), handler) as server:
        upstream.url = f"http://127.0.0.1:{server.server_port}{path}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield upstream
        finally:
            upstream.gate.set()
            server.shutdown()
            thread.join()


def noul(share: float) -> Reply:
    """Answer each question of System One with yes or no."""
    return lambda body: {
        "answers": {name: {"type": "noul", "noul": share} for name in body["questions"]}
    }
