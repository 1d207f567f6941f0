"""HTTP servers of tests on this machine, each with a handler of its own."""

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import MappingProxyType
from typing import Any

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Exchange(BaseHTTPRequestHandler):
    """One request and its answer, which subclasses give in `reply`."""

    def reply(self) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.reply()

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815 - the names that the base calls

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def answer(
        self, status: int, content: bytes = b"", headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Say nothing."""


class _Listener(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - of the base
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def listening(handler: Callable[..., BaseHTTPRequestHandler]) -> Generator[str]:
    """Answer requests on a free port until the end; yields the address."""
    with _Listener(("127.0.0.1", 0), handler) as listener:
        thread = Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.server_port}"
        finally:
            listener.shutdown()
            thread.join()
