"""The HTTP protocol of uvicorn, with limits on sizes, times and the number of connections."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, ClassVar, Final, cast

import httptools
from starlette.responses import Response
from starlette.types import Scope
from uvicorn._types import ASGI3Application, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

MAX_HEADERS: Final = 100
MAX_PIPELINED: Final = 64
"""Most requests that wait on a connection for the answers before theirs."""
MAX_HEAD_BYTES: Final = 64 * 1024
"""Most bytes of a request's target and headers, and of useless bytes around its body."""
PIECE_BYTES: Final = MAX_HEAD_BYTES // 4
"""Bytes that are parsed before the useless bytes are counted, because one read may be longer."""
VERSIONS: Final = frozenset({"1.0", "1.1"})
WARNING_PAUSE_S: Final = 60.0
BODY_SLACK_S: Final = 1.0
"""Extra time for the rest of a request, so that a route's own limit ends first, with an answer."""
_CLOSE: Final = (b"connection", b"close")
_GONE_KEY: Final = "nunatak_caller_has_gone"
_GIVEN_UP_KEY: Final = "nunatak_is_given_up"
LINGER_S: Final = 2.0
"""Longest time in which the rest of a body is discarded before the connection closes."""
STREAMED_KEY: Final = "nunatak_is_streamed"
"""Marks a request whose route answers while the body arrives: each part of the body has the time of
a whole body."""

logger = logging.getLogger(__name__)

RefusalOf = Callable[[Scope], Response | None]
"""Returns an answer to the head of a request, without its body and without waiting; or None."""
AnswerUnreadable = Callable[[], Response]
"""Returns the answer to bytes that are no request."""


class HeadError(ValueError):
    """A request head that is not served; the parser turns the error into a 400 and closes."""


def caller_has_gone(scope: MutableMapping[str, Any]) -> bool:
    return _GONE_KEY in scope


def is_given_up(scope: MutableMapping[str, Any]) -> bool:
    """Return whether a request was cancelled because the server ends."""
    return _GIVEN_UP_KEY in scope


class Waiting:
    """The connections without a whole request, in the order in which their waits began.

    Over the limit of open connections, each new connection ends the one that has waited longest.
    So callers that only hold connections lose them first, and a caller that asks is answered.
    """

    def __init__(self, max_connections: int | None = None) -> None:
        """Allow this number of open connections; None: any number."""
        self._max_connections = max_connections
        self._connections: OrderedDict[BoundedProtocol, None] = OrderedDict()
        self._warns_at = 0.0

    def begin(self, connection: "BoundedProtocol") -> None:
        self._connections[connection] = None
        self._connections.move_to_end(connection)

    def end(self, connection: "BoundedProtocol") -> None:
        self._connections.pop(connection, None)

    def make_room(self, new: "BoundedProtocol") -> None:
        """End one connection for a new one over the limit: the new one itself if none waits."""
        if self._max_connections is None or len(new.connections) <= self._max_connections:
            return
        ended, _ = self._connections.popitem(last=False) if self._connections else (new, None)
        ended.transport.abort()
        now = new.loop.time()
        if now >= self._warns_at:
            self._warns_at = now + WARNING_PAUSE_S
            logger.warning(
                "%d connections are open, as many as the limit of open files allows; each new one "
                "ends the connection that has waited longest for a request",
                self._max_connections,
            )


class BoundedProtocol(HttpToolsProtocol):
    """Closes connections that send or read too slowly, or whose request heads are too large.

    A head must arrive whole within `receive_timeout_s` of its first byte. The first head of a
    connection must arrive within that time of the opening, so that no caller can hoard sockets.
    The rest of a request has the same time again, also if no route reads it. A caller has the same
    time to read an answer, so that unread answers are not kept. Fields after a body are discarded,
    because they would count as headers without the checks of headers. All work for a request is
    cancelled when its caller has gone. Requests that are refused by their heads are answered at
    once, without a task, and their bodies are discarded on arrival. If the check of a head fails,
    the application checks the request. An offer to upgrade is ignored, as RFC 9110 (7.8) allows.
    """

    receive_timeout_s: ClassVar[float] = 10.0
    waiting: ClassVar[Waiting] = Waiting()

    _awaits_head = True
    _awaits_body = False
    _has_left = False
    """Whether the last answer is sent, and only the rest of its request is discarded."""
    _timers: dict[str, asyncio.TimerHandle]
    """The running timers of the connection: for the head, the body and the answer."""
    _idle_bytes = 0
    """Bytes since the last useful byte: the rest of a head, or bytes around a body."""
    _answering: RequestResponseCycle | None = None
    _handling: asyncio.Task[None] | None = None

    @staticmethod
    def refusal_of(scope: Scope) -> Response | None:  # noqa: ARG004 - an argument for subclasses
        return None

    @staticmethod
    def is_leaving() -> bool:
        return False

    @staticmethod
    def answer_unreadable() -> Response:
        return Response(status_code=HTTPStatus.BAD_REQUEST)

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._timers = {}
        self.waiting.make_room(self)
        self._wait_for_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        for name in list(self._timers):
            self._stop_timer(name)
        self._forget_caller()
        if self._answering is not None:
            # Its own way to close would form a reference cycle.
            self._answering.transport = self.transport
        self.waiting.end(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        for begin in range(0, len(data), PIECE_BYTES):
            piece = data[begin : begin + PIECE_BYTES]
            self._idle_bytes += len(piece)
            try:
                self._parse(piece)
            except httptools.HttpParserError:
                self.logger.warning("Invalid HTTP request received.")
                self.send_400_response("Invalid HTTP request received.")
                return
            is_open = self._awaits_head or self._awaits_body
            if is_open and self._idle_bytes > MAX_HEAD_BYTES:
                self._stop_timer("head")
                self.send_400_response("The request head is too large.")
                return
        self._wait_for_rest()

    def _parse(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stop:
                # The parser takes all bytes after such a head for another protocol. A new parser
                # gets the head without the offer, so that the body is a body.
                head = self._head_without_upgrade()
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                data = head + data[stop.args[0] :]
            else:
                return

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        fields = (b"%b: %b" % it for it in self.headers if it[0] != b"upgrade")
        first = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)
        return b"\r\n".join([first, *fields, b"\r\n"])

    def send_400_response(self, msg: str) -> None:
        """Answer unreadable bytes, and close. While an earlier answer is due, only close."""
        if self.transport.is_closing():
            return
        answering = self._answering
        if not self._has_left and (
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
            self.transport.close()
        _scope_of(cycle)[_GIVEN_UP_KEY] = True
        handling.cancel()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._awaits_head = True

    def on_headers_complete(self) -> None:
        if len(self.headers) > MAX_HEADERS:
            raise HeadError(f"at most {MAX_HEADERS} headers are read")
        if len(self.url) + sum(len(it) + len(value) for it, value in self.headers) > MAX_HEAD_BYTES:
            raise HeadError(f"at most {MAX_HEAD_BYTES} bytes of a head are read")
        if self.parser.get_http_version() not in VERSIONS or self.parser.get_method() == b"CONNECT":
            raise HeadError("HTTP/1.0 and HTTP/1.1 are read, without tunnels")
        codings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings not in ([], [b"chunked"]):
            raise HeadError("the parser would pass on a body of another coding as it is")
        if len(self.pipeline) >= MAX_PIPELINED:
            raise HeadError(f"at most {MAX_PIPELINED} requests may wait on a connection")
        if self.parser.should_upgrade():
            # The head comes again, without the offer.
            return
        self._awaits_head, self._awaits_body = False, True
        self._idle_bytes = 0
        self._stop_timer("head")
        super().on_headers_complete()
        # The request keeps its own headers; the parser would add fields after the body.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        self._idle_bytes = 0
        if STREAMED_KEY in _scope_of(self.cycle):
            self._stop_timer("body")
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._awaits_body = False
        if not self.cycle.response_complete:
            self.waiting.end(self)
        self._idle_bytes = 0
        self._stop_timer("body")
        super().on_message_complete()
        if self._has_left:
            self.transport.close()
        if self.cycle.response_complete and self.timeout_keep_alive_task is None:
            # An unread rest of a body has paused the transport.
            self._begin_keep_alive()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_caller()

    def leave(self) -> None:
        """Close, but discard the rest of a body before.

        A close resets the connection of a caller that still sends, who may never see the answer.
        """
        if self.transport.is_closing() or self.pipeline or not self._awaits_body:
            self.transport.close()
        elif not self._has_left:
            self._has_left = True
            with suppress(OSError):  # The caller may have gone.
                self.transport.write_eof()
            self._stop_timer("body")
            self._timers["body"] = self.loop.call_later(LINGER_S, self._abort)

    def shutdown(self) -> None:
        if not self._has_left:
            super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_timer("write")
        self._timers["write"] = self.loop.call_later(self.receive_timeout_s, self._abort)

    def resume_writing(self) -> None:
        self._stop_timer("write")
        super().resume_writing()

    def _wait_for_rest(self) -> None:
        # Checked at the end of the bytes, because most requests arrive whole and need no timer.
        if self.transport.is_closing():
            return
        if self._awaits_head and "head" not in self._timers:
            self._wait_for_caller()
            self._timers["head"] = self.loop.call_later(self.receive_timeout_s, self._give_up)
        if self._awaits_body and "body" not in self._timers:
            self._wait_for_caller()
            wait_s = self.receive_timeout_s + BODY_SLACK_S
            self._timers["body"] = self.loop.call_later(wait_s, self._give_up_body)

    def _wait_for_caller(self) -> None:
        """Let the connection wait from now on, unless it has a whole request in work."""
        # A connection has no cycle before its first request, whatever uvicorn's types say.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        is_due = cycle is None or cycle.response_complete or self._awaits_body
        if is_due and not self.pipeline and not self.transport.is_closing():
            self.waiting.begin(self)

    def _give_up(self) -> None:
        del self._timers["head"]
        self.transport.close()

    def _give_up_body(self) -> None:
        del self._timers["body"]
        if self.flow.read_paused:
            # The server itself has paused reading, for example during an earlier request.
            self._wait_for_rest()
        else:
            self._abort()

    def _stop_timer(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _abort(self) -> None:
        self._forget_caller()
        # A normal close would wait for the caller again.
        self.transport.abort()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if self._has_left:
            return
        if self.is_leaving():
            # Callers learn from the answer that the connection closes, and open another one.
            cycle.keep_alive = False
        refusal = self._refusal(cycle)
        if refusal is not None:
            self._refuse(cycle, refusal)
            return
        if _scope_of(cycle)["http_version"] == "1.0":
            _speak_old(cycle)
        ways = {"write": self.transport.write, "is_closing": self.transport.is_closing}
        cycle.transport = cast("asyncio.Transport", SimpleNamespace(**ways, close=self.leave))
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
            self.leave()
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
    max_connections: int | None = None,
) -> type[BoundedProtocol]:
    """Return the protocol with its limits, as a class, because uvicorn makes the instances."""
    attributes = {
        "receive_timeout_s": receive_timeout_s,
        "waiting": Waiting(max_connections),
        "refusal_of": staticmethod(refusal_of),
        "is_leaving": staticmethod(is_leaving),
        "answer_unreadable": staticmethod(answer_unreadable),
    }
    return type("Protocol", (BoundedProtocol,), attributes)


def _speak_old(cycle: RequestResponseCycle) -> None:
    """Answer HTTP/1.0, without interim answers and chunks: the connection ends the answer."""
    cycle.waiting_for_100_continue = False
    send = cycle.send

    async def send_plain(message: ASGISendEvent) -> None:
        # uvicorn ends an answer without chunks when it has sent as many bytes as it expects.
        cycle.chunked_encoding = False
        cycle.expected_content_length = len(message.get("body", b""))  # pyrefly: ignore[bad-argument-type] - bytes
        await send(message)

    cycle.send = send_plain  # pyrefly: ignore[method-assign] - for this cycle alone


def _scope_of(cycle: RequestResponseCycle) -> Scope:
    return cast("Scope", cycle.scope)
