"""A server of decisions over real HTTP that answers as a test tells it."""

import contextlib
import json
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from doubles.listeners import Exchange, listening

Reply = Callable[[dict[str, Any]], object]


@dataclass
class Raw:
    """A head and a body, after which the connection ends if the caller asks for it."""

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


class _Exchange(Exchange):
    protocol_version = "HTTP/1.1"

    def __init__(self, upstream: FakeUpstream, *args: Any) -> None:  # noqa: ANN401 - the signature of the base class
        self._upstream = upstream
        super().__init__(*args)

    def reply(self) -> None:
        body = json.loads(self.body())
        self._upstream.bodies.append(body)
        self._upstream.headers.append({name.lower(): it for name, it in self.headers.items()})
        self._upstream.gate.wait(30)
        match self._upstream.reply(body):
            case None:
                self.close_connection = True
            case Raw() as raw:
                self.send_response(raw.status)
                for name, value in raw.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(raw.body)
            case int() as status:
                self.answer(status, json.dumps(status).encode())
            case bytes() as data:
                self.answer(200, data)
            case document:
                self.answer(200, json.dumps(document).encode())


@contextlib.contextmanager
def running_upstream(reply: Reply, path: str = "/v1/systemone") -> Generator[FakeUpstream]:
    upstream = FakeUpstream(reply)
    upstream.gate.set()
    with listening(partial(_Exchange, upstream)) as address:
        upstream.url = address + path
        try:
            yield upstream
        finally:
            upstream.gate.set()


def noul(share: float) -> Reply:
    """Answer each question of System One with yes or no."""
    return lambda body: {
        "answers": {name: {"type": "noul", "noul": share} for name in body["questions"]}
    }
