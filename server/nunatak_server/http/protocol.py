"""The HTTP protocol of uvicorn, with limits on sizes and times."""

import asyncio
from collections.abc import Callable, MutableMapping, Sequence
from http import HTTPStatus
from typing import Any, ClassVar, Final, cast

from starlette.responses import Response
from starlette.types import Scope
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

MAX_HEADERS: Final = 100
MAX_HEAD_BYTES: Final = 64 * 1024
"""Most bytes of a request's target and headers, and of useless bytes around its body."""
BODY_SLACK_S: Final = 1.0
"""Extra time for the rest of a request, so that a route's own limit ends first, with an answer."""
_CLOSE: Final = (b"connection", b"close")
_GONE_KEY: Final = "nunatak_caller_has_gone"
_GIVEN_UP_KEY: Final = "nunatak_is_given_up"

RefusalOf = Callable[[Scope], Response | None]
"""Returns an answer to the head of a request, without its body and without waiting; or None."""
AnswerUnreadable = Callable[[], Response]
"""Returns the answer to bytes that are no request."""


class HeadLimitError(ValueError):
    """A request head beyond the limits; the parser turns it into a 400 and closes."""


def caller_has_gone(scope: MutableMapping[str, Any]) -> bool:
    """Return whether a request was cancelled because its caller has closed the connection."""
    return _GONE_KEY in scope


def is_given_up(scope: MutableMapping[str, Any]) -> bool:
    """Return whether a request was cancelled because the server ends."""
    return _GIVEN_UP_KEY in scope


class BoundedProtocol(HttpToolsProtocol):
    """Closes connections that send or read too slowly, or whose request heads are too large.

    A head must arrive whole within `receive_timeout_s` of its first byte. The first head of a
    connection must arrive within that time of the opening, so that no caller can hoard sockets.
    The rest of a request has the same time again, also if no route reads it. A caller has the same
    time to read an answer, so that unread answers are not kept. Fields after a body are discarded,
    because they would count as headers without the checks of headers. All work for a request is
    cancelled when its caller has gone. Requests that are refused by their heads are answered at
    once, without a task, and their bodies are discarded on arrival. If the check of a head fails,
    the application checks the request.
    """

    receive_timeout_s: ClassVar[float] = 10.0

    _awaits_head = True
    _awaits_body = False
    _head_timer: asyncio.TimerHandle | None = None
    _body_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _idle_bytes = 0
    """Bytes since the last useful byte: the rest of a head, or bytes around a body."""
    _answering: RequestResponseCycle | None = None
    _handling: asyncio.Task[None] | None = None

    @staticmethod
    def refusal_of(scope: Scope) -> Response | None:  # noqa: ARG004 - an argument for subclasses
        """Return the answer to a request that is refused by its head, or None."""
        return None

    @staticmethod
    def is_leaving() -> bool:
        """Return whether the connection should close after its next answer."""
        return False

    @staticmethod
    def answer_unreadable() -> Response:
        """Return the answer to bytes that are no request."""
        return Response(status_code=HTTPStatus.BAD_REQUEST)

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - the signature of the base class
        """Start to wait for the first head."""
        super().connection_made(transport)
        self._wait_for_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_head_timer()
        self._stop_body_timer()
        self._stop_write_timer()
        self._forget_caller()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the useless bytes, and wait for the missing part."""
        self._idle_bytes += len(data)
        super().data_received(data)
        is_open = self._awaits_head or self._awaits_body
        if is_open and self._idle_bytes > MAX_HEAD_BYTES:
            self._stop_head_timer()
            self.send_400_response("The request head is too large.")
        else:
            self._wait_for_rest()

    def send_400_response(self, msg: str) -> None:
        """Answer unreadable bytes, and close. While an earlier answer is due, only close."""
        if self.transport.is_closing():
            return
        answering = self._answering
        if (
            answering is None
            or answering.response_complete
            # The body of this request could not be read.
            or (self._awaits_body and not self.pipeline and not answering.response_started)
        ):
            answer = self.answer_unreadable()
            headers = [*self.server_state.default_headers, *answer.raw_headers]
            if _CLOSE not in headers:
                headers.append(_CLOSE)
            self._write(answer, headers)
        self.transport.close()

    def end(self) -> None:
        """Cancel the running request, which may still answer if its answer has not begun."""
        self.pipeline.clear()
        cycle, handling = self._answering, self._handling
        if cycle is None or handling is None or cycle.response_complete:
            self.transport.close()
            return
        cycle.keep_alive = False
        if cycle.response_started or self.flow.write_paused:
            # The request must not also count as left by its caller.
            cycle.disconnected = True
            cycle.transport.close()
        _scope_of(cycle)[_GIVEN_UP_KEY] = True
        handling.cancel()

    def on_message_begin(self) -> None:
        """Wait for the rest of a head."""
        super().on_message_begin()
        self._awaits_head = True

    def on_headers_complete(self) -> None:
        """Wait for the body, or refuse the request if its head is too large."""
        if len(self.headers) > MAX_HEADERS:
            raise HeadLimitError(f"at most {MAX_HEADERS} headers are read")
        if len(self.url) + sum(len(it) + len(value) for it, value in self.headers) > MAX_HEAD_BYTES:
            raise HeadLimitError(f"at most {MAX_HEAD_BYTES} bytes of a head are read")
        self._awaits_head, self._awaits_body = False, True
        self._idle_bytes = 0
        self._stop_head_timer()
        super().on_headers_complete()
        # The request keeps its own headers; the parser would add fields after the body.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        """Receive a part of the body."""
        self._idle_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop waiting: the request is whole."""
        self._awaits_body = False
        self._idle_bytes = 0
        self._stop_body_timer()
        super().on_message_complete()
        if self.cycle.response_complete and self.timeout_keep_alive_task is None:
            # An unread rest of a body has paused the transport.
            self._begin_keep_alive()

    def pause_writing(self) -> None:
        """Begin to wait for the caller to read."""
        super().pause_writing()
        self._stop_write_timer()
        self._write_timer = self.loop.call_later(self.receive_timeout_s, self._abort)

    def resume_writing(self) -> None:
        """Stop waiting: the caller has read."""
        self._stop_write_timer()
        super().resume_writing()

    def _wait_for_rest(self) -> None:
        # Checked at the end of the bytes, because most requests arrive whole and need no timer.
        if self.transport.is_closing():
            return
        if self._awaits_head and self._head_timer is None:
            self._head_timer = self.loop.call_later(self.receive_timeout_s, self._give_up)
        if self._awaits_body and self._body_timer is None:
            wait_s = self.receive_timeout_s + BODY_SLACK_S
            self._body_timer = self.loop.call_later(wait_s, self._give_up_body)

    def _give_up(self) -> None:
        self._head_timer = None
        self.transport.close()

    def _give_up_body(self) -> None:
        self._body_timer = None
        if self.flow.read_paused:
            # The server itself has paused reading, for example during an earlier request.
            self._wait_for_rest()
        else:
            self._abort()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_body_timer(self) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _abort(self) -> None:
        self._forget_caller()
        # A normal close would wait for the caller again.
        self.transport.abort()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if self.is_leaving():
            # Callers learn from the answer that the connection closes, and open another one.
            cycle.keep_alive = False
        refusal = self._refusal(cycle)
        if refusal is not None:
            self._refuse(cycle, refusal)
            return
        handling = self.loop.create_task(cycle.run_asgi(app))
        handling.add_done_callback(self.tasks.discard)
        self.tasks.add(handling)
        self._answering, self._handling = cycle, handling

    def _refusal(self, cycle: RequestResponseCycle) -> Response | None:
        if self.flow.write_paused:
            # Unread answers must not pile up, so the application waits until the caller reads.
            return None
        try:
            return self.refusal_of(_scope_of(cycle))
        except Exception:
            # An error here would look like a bad request to the parser.
            self.logger.exception("the check of a request's head failed")
            return None

    def _refuse(self, cycle: RequestResponseCycle, refusal: Response) -> None:
        headers = [*cycle.default_headers, *refusal.raw_headers]
        if _CLOSE in headers:
            cycle.keep_alive = False
        elif not cycle.keep_alive:
            headers.append(_CLOSE)
        self._write(refusal, headers)
        cycle.response_started = cycle.response_complete = True
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()

    def _write(self, answer: Response, headers: Sequence[tuple[bytes, bytes]]) -> None:
        head = b"".join([b"%b: %b\r\n" % header for header in headers])
        self.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[answer.status_code], head, answer.body))

    def _begin_keep_alive(self) -> None:
        if not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _forget_caller(self) -> None:
        # The base class notifies only the last request of a connection, and only a waiting one. An
        # earlier request, still in work, would write to a closed connection.
        cycle, handling = self._answering, self._handling
        if cycle is None or handling is None or cycle.response_complete or cycle.disconnected:
            return
        cycle.disconnected = True
        cycle.message_event.set()
        _scope_of(cycle)[_GONE_KEY] = True
        handling.cancel()


def bounded_protocol(
    *,
    receive_timeout_s: float,
    refusal_of: RefusalOf = BoundedProtocol.refusal_of,
    is_leaving: Callable[[], bool] = BoundedProtocol.is_leaving,
    answer_unreadable: AnswerUnreadable = BoundedProtocol.answer_unreadable,
) -> type[BoundedProtocol]:
    """Return the protocol with a time limit, as a class, because uvicorn makes the instances."""
    attributes = {
        "receive_timeout_s": receive_timeout_s,
        "refusal_of": staticmethod(refusal_of),
        "is_leaving": staticmethod(is_leaving),
        "answer_unreadable": staticmethod(answer_unreadable),
    }
    return type("Protocol", (BoundedProtocol,), attributes)


def _scope_of(cycle: RequestResponseCycle) -> Scope:
    return cast("Scope", cycle.scope)
