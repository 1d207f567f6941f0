"""The HTTP protocol, with the limits on request heads that uvicorn leaves to its surroundings."""

import asyncio
from typing import ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADERS: Final = 100
MAX_HEAD_BYTES: Final = 64 * 1024


class HeadLimitError(ValueError):
    """A request head beyond the limits; the parser turns it into a 400 and closes."""


class BoundedProtocol(HttpToolsProtocol):
    """Closes connections whose request heads are too slow or too large.

    A head must arrive whole within `receive_timeout_s` of its first byte, the first head of a
    connection within that time of its opening: idle sockets cannot be hoarded.
    """

    receive_timeout_s: ClassVar[float] = 10.0

    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - as in the base class
        """Begin to wait for the first head."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of a head that is not complete, before and after parsing."""
        if self._head_timer is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_timer is not None and self._head_bytes > MAX_HEAD_BYTES:
            self._stop_timer()
            self.send_400_response("The request head is too large.")

    def on_message_begin(self) -> None:
        """Begin to wait for the rest of a head."""
        super().on_message_begin()
        if self._head_timer is None:
            self._start_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header, or refuse the request if it has too many."""
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            raise HeadLimitError(f"at most {MAX_HEADERS} headers are read")

    def on_headers_complete(self) -> None:
        """Stop waiting: the limits on bodies begin."""
        self._stop_timer()
        super().on_headers_complete()

    def _start_timer(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(self.receive_timeout_s, self._give_up)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        self.transport.close()


def bounded_protocol(*, receive_timeout_s: float) -> type[BoundedProtocol]:
    """Return the protocol with a time limit; uvicorn takes classes, not instances."""
    return type("Protocol", (BoundedProtocol,), {"receive_timeout_s": receive_timeout_s})
