"""The HTTP protocol, with what uvicorn leaves to its surroundings: limits and ends."""

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
"""Of a request's target and headers; and of what comes around its body, at once, for no use."""
BODY_SLACK_S: Final = 1.0
"""A route that reads a body gives up first, with an answer."""
_CLOSE: Final = (b"connection", b"close")
_GONE_KEY: Final = "nunatak_caller_has_gone"
_GIVEN_UP_KEY: Final = "nunatak_is_given_up"

RefusalOf = Callable[[Scope], Response | None]
"""Given the head of a request, returns an answer that needs neither its body nor any waiting."""
AnswerUnreadable = Callable[[], Response]
"""Returns the answer to what could not be read as a request."""


class HeadLimitError(ValueError):
    """A request head beyond the limits; the parser turns it into a 400 and closes."""


def caller_has_gone(scope: MutableMapping[str, Any]) -> bool:
    """Tell whether the handling of a request was cancelled because nobody waits for its answer."""
    return _GONE_KEY in scope


def is_given_up(scope: MutableMapping[str, Any]) -> bool:
    """Tell whether the handling of a request was cancelled because the server ends."""
    return _GIVEN_UP_KEY in scope


class BoundedProtocol(HttpToolsProtocol):
    """Closes connections that are too slow either way, or whose request heads are too large.

    A head must arrive whole within `receive_timeout_s` of its first byte, the first head of a
    connection within that time of its opening: idle sockets cannot be hoarded. The rest of a
    request has as long again, also where no route reads it, and so has a caller to take in what
    was sent: answers that nobody reads are not kept.

    Fields after a body are thrown away: they would pass for headers, which were limited and looked
    at before.

    Whatever is done for a request is cancelled when its caller has gone. What is refused by its
    head is answered here and now, without a task; its body is thrown away as it comes. Where
    that fails, the application has to look for itself.
    """

    receive_timeout_s: ClassVar[float] = 10.0

    _awaits_head = True
    _awaits_body = False
    _head_timer: asyncio.TimerHandle | None = None
    _body_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _idle_bytes = 0
    """That came since the last of them was of use: the rest of a head, or what is around a body."""
    _answering: RequestResponseCycle | None = None
    _handling: asyncio.Task[None] | None = None

    @staticmethod
    def refusal_of(scope: Scope) -> Response | None:  # noqa: ARG004 - for what overrides it
        """Return the answer to a request that is refused by its head."""
        return None

    @staticmethod
    def answer_unreadable() -> Response:
        """Return the answer to what could not be read as a request."""
        return Response(status_code=HTTPStatus.BAD_REQUEST)

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - as in the base class
        """Begin to wait for the first head."""
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
        """Count the bytes that are of no use yet, and wait for what has not come."""
        self._idle_bytes += len(data)
        super().data_received(data)
        is_open = self._awaits_head or self._awaits_body
        if is_open and self._idle_bytes > MAX_HEAD_BYTES:
            self._stop_head_timer()
            self.send_400_response("The request head is too large.")
        else:
            self._wait_for_rest()

    def send_400_response(self, msg: str) -> None:
        """Answer what could not be read, and close; while another answer is owed, close alone."""
        if self.transport.is_closing():
            return
        answering = self._answering
        if (
            answering is None
            or answering.response_complete
            # It is the body of this very request that could not be read.
            or (self._awaits_body and not self.pipeline and not answering.response_started)
        ):
            answer = self.answer_unreadable()
            headers = [*self.server_state.default_headers, *answer.raw_headers]
            if _CLOSE not in headers:
                headers.append(_CLOSE)
            self._write(answer, headers)
        self.transport.close()

    def end(self) -> None:
        """Give up what is being answered, which may still say so if its answer has not begun."""
        self.pipeline.clear()
        cycle, handling = self._answering, self._handling
        if cycle is None or handling is None or cycle.response_complete:
            self.transport.close()
            return
        cycle.keep_alive = False
        if cycle.response_started or self.flow.write_paused:
            # That the caller has gone as well must not be said of it.
            cycle.disconnected = True
            cycle.transport.close()
        _scope_of(cycle)[_GIVEN_UP_KEY] = True
        handling.cancel()

    def on_message_begin(self) -> None:
        """Expect the rest of a head."""
        super().on_message_begin()
        self._awaits_head = True

    def on_headers_complete(self) -> None:
        """Expect the body instead, or refuse the request if its head is too large."""
        if len(self.headers) > MAX_HEADERS:
            raise HeadLimitError(f"at most {MAX_HEADERS} headers are read")
        if len(self.url) + sum(len(it) + len(value) for it, value in self.headers) > MAX_HEAD_BYTES:
            raise HeadLimitError(f"at most {MAX_HEAD_BYTES} bytes of a head are read")
        self._awaits_head, self._awaits_body = False, True
        self._idle_bytes = 0
        self._stop_head_timer()
        super().on_headers_complete()
        # The request keeps its own; the parser would add to them what comes after the body.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        """Take in a part of the body."""
        self._idle_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Expect nothing: the request is whole."""
        self._awaits_body = False
        self._idle_bytes = 0
        self._stop_body_timer()
        super().on_message_complete()
        if self.cycle.response_complete and self.timeout_keep_alive_task is None:
            # The rest of a body that nobody read has stopped it.
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
        # At the end of what came: most requests come whole, and are not waited for at all.
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
            # It is we who do not read, as when an earlier request of the connection is answered.
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
        # Closing would wait for the caller once more.
        self.transport.abort()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
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
            # Answers that nobody takes must not pile up: the application waits until they do.
            return None
        try:
            return self.refusal_of(_scope_of(cycle))
        except Exception:
            # The parser would say that the request is bad.
            self.logger.exception("a request could not be looked at by its head")
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
        # The base class tells only the last request of a connection, and only if it listens; an
        # earlier one, still being answered, would write to what is closed.
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
    answer_unreadable: AnswerUnreadable = BoundedProtocol.answer_unreadable,
) -> type[BoundedProtocol]:
    """Return the protocol with a time limit; uvicorn takes classes, not instances."""
    attributes = {
        "receive_timeout_s": receive_timeout_s,
        "refusal_of": staticmethod(refusal_of),
        "answer_unreadable": staticmethod(answer_unreadable),
    }
    return type("Protocol", (BoundedProtocol,), attributes)


def _scope_of(cycle: RequestResponseCycle) -> Scope:
    return cast("Scope", cycle.scope)
