"""Streams of verdicts: chunks of a text in, events out, over one request.

The answer begins before the body ends. Chunks are lines of JSON, events of a server (SSE), or plain
text. A failure after the beginning is the last event, and its action is `block`.
"""

import asyncio
import codecs
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from email.message import Message
from functools import partial
from typing import Annotated, Any, Final

from fastapi import Header, Request, Response
from starlette.types import Receive, Scope, Send

from nunatak_contract.enums import StreamEventKind, VerdictAction
from nunatak_contract.errors import NunatakError
from nunatak_contract.wire import EVENTS_TYPE, LINES_TYPE, StreamEvent
from nunatak_server.errors import invalid_request
from nunatak_server.http.access import caller_of, request_id_of, state_of
from nunatak_server.http.endpoints import PROBLEMS, ParsedBody, Routed, Router, runtime_of
from nunatak_server.http.middleware import StrictRoute, check_encoding, media_type_of
from nunatak_server.http.problems import problem_of
from nunatak_server.http.protocol import STREAMED_KEY
from nunatak_server.http.replies import LinesResponse, line_of
from nunatak_server.scheduler.admission import HeldBytes
from nunatak_server.scheduler.turns import within
from nunatak_server.verdicts.judge import verdict_fields
from nunatak_server.verdicts.stream import Released, Streamed, VerdictStream

PLAIN_TYPE: Final = "text/plain"
BODY_TYPES: Final = (LINES_TYPE, EVENTS_TYPE, PLAIN_TYPE)
DONE: Final = b"[DONE]"
"""The data of the last event, as OpenAI's API sends it."""
LINES_A_TURN: Final = 256
"""Lines that are read in about a millisecond; then others have a turn of the event loop."""
DECODER: Final = json.JSONDecoder(object_pairs_hook=tuple)
TEXTLESS: Final = frozenset((b"", b"event", b"id", b"retry"))
"""Fields of events without a part of the text; comments and empty lines have an empty name."""

AcceptHeader = Annotated[str | None, Header(description=f"`{EVENTS_TYPE}`: events of a server")]
_TEXTS: Final = {"schema": {"type": "string"}}
STREAM: Final[dict[str, Any]] = {
    "requestBody": {"required": True, "content": dict.fromkeys(BODY_TYPES, _TEXTS)}
}


class StreamedRoute(StrictRoute):
    async def read(self, request: Request, *, held: HeldBytes) -> ParsedBody:
        del held
        head = Message()
        head["content-type"] = request.headers.get("content-type", "")
        is_read = head.get_content_charset("utf-8") in ("utf-8", "utf8", "us-ascii")
        if not is_read or media_type_of(request.scope).decode("latin-1") not in BODY_TYPES:
            raise NunatakError("unsupported_stream_type", types=", ".join(BODY_TYPES))
        check_encoding(request.scope)
        return ParsedBody()


class EventsResponse(LinesResponse):
    """Sends events, and leaves the messages of the transport to the reader of the body."""

    def __init__(self, events: AsyncGenerator[bytes], *, media_type: str) -> None:
        super().__init__(events)
        self.headers["content-type"] = media_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events; the protocol cancels the call once the caller has gone."""
        del receive
        scope[STREAMED_KEY] = True
        try:
            with self._held:
                async with aclosing(self._lines):
                    await self.stream_response(send)
        finally:
            # The rest of the body has the time of any other body.
            del scope[STREAMED_KEY]


router = Router(route_class=StreamedRoute, responses=PROBLEMS)


@router.ask(
    "/v1/verdicts/{policy}/stream",
    answer=None,
    response_class=EventsResponse,
    status_code=200,
    openapi_extra=STREAM,
    responses={
        200: {
            "model": StreamEvent,
            "content": {EVENTS_TYPE: {"schema": {"type": "string"}}},
            "description": "an event for each line; the last is the final verdict, or an error",
        }
    },
)
async def judge_stream(
    request: Request, handling: Routed, policy: str, accept: AcceptHeader = None
) -> Response:
    """Judge a text while it arrives: lines such as `{"text": "Hello"}` in, events out.

    Text is released once all tasks have judged each window that covers it.
    """
    runtime = runtime_of(request)
    runtime.readiness.check()
    published, _ = await runtime.judge.find(policy, handling)
    stream = VerdictStream(
        runtime.judge, published, handling, clock=asyncio.get_running_loop().time
    )
    media_type = EVENTS_TYPE if EVENTS_TYPE in (accept or "") else LINES_TYPE
    return EventsResponse(_events(request, stream, media_type), media_type=media_type)


async def _events(
    request: Request, stream: VerdictStream, media_type: str
) -> AsyncGenerator[bytes]:
    write = _as_event if media_type == EVENTS_TYPE else line_of
    request_id, admission = request_id_of(request.scope), runtime_of(request).admission
    with admission.hold_bytes(caller_of(request.scope).name) as held:
        try:
            async with aclosing(stream.events(_chunks(request, held))) as events:
                async for event in events:
                    yield write(_fields(event, request_id))
        except Exception as error:
            yield write(_failure(problem_of(error, request_id=request_id)))
            if not isinstance(error, NunatakError):
                raise


def _fields(event: Streamed, request_id: str | None) -> dict[str, Any]:
    if isinstance(event, Released):
        kind = StreamEventKind.MASK if event.is_mask else StreamEventKind.TEXT
        return {"event": kind, "text": event.text}
    (decision,) = event.judgement.decisions
    text = decision.masked or ""
    problem = partial(problem_of, request_id=request_id)
    verdict = verdict_fields(event.judgement, text, problem)
    if not event.is_final:
        verdict |= {"texts": None, "masks": None}
    return {"event": StreamEventKind.VERDICT, "final": event.is_final, "verdict": verdict}


def _failure(problem: dict[str, Any]) -> dict[str, Any]:
    return {
        "event": StreamEventKind.ERROR,
        "final": True,
        "action": VerdictAction.BLOCK,
        "error": problem,
    }


def _as_event(fields: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n" % (fields["event"].encode(), line_of(fields))


def _chunks(request: Request, held: HeldBytes) -> AsyncGenerator[str]:
    read = {PLAIN_TYPE: _plain, LINES_TYPE: _lines, EVENTS_TYPE: _data}
    return read[media_type_of(request.scope).decode("latin-1")](_pieces(request, held))


async def _pieces(request: Request, held: HeldBytes) -> AsyncGenerator[bytes]:
    settings, total = state_of(request.scope).settings, 0
    limit_s, limit_bytes = settings.receive_timeout_s, settings.max_body_bytes
    late: Callable[[], NunatakError] = partial(NunatakError, "receive_timeout", limit_s=limit_s)
    ends_at = time.monotonic() + settings.max_stream_s
    async with aclosing(request.stream()) as pieces:
        while piece := await within(limit_s, anext(pieces, b""), late=late):
            if time.monotonic() > ends_at:
                raise NunatakError("receive_timeout", limit_s=settings.max_stream_s)
            total += len(piece)
            if total > limit_bytes:
                raise NunatakError("body_too_large", limit_bytes=limit_bytes)
            held.take(len(piece))
            yield piece


async def _plain(pieces: AsyncGenerator[bytes]) -> AsyncGenerator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        async for piece in pieces:
            yield decoder.decode(piece)
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise NunatakError("invalid_text", reason="bytes that are not UTF-8") from None


async def _whole_lines(pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    rest = bytearray()
    async for piece in pieces:
        rest += piece
        if b"\n" in piece:
            *lines, last = rest.split(b"\n")
            rest = bytearray(last)
            for number, line in enumerate(lines, start=1):
                yield bytes(line.strip())
                if not number % LINES_A_TURN:
                    await asyncio.sleep(0)
    yield bytes(rest.strip())


async def _lines(pieces: AsyncGenerator[bytes]) -> AsyncGenerator[str]:
    async for line in _whole_lines(pieces):
        if line:
            yield _text_of(line)


async def _data(pieces: AsyncGenerator[bytes]) -> AsyncGenerator[str]:
    is_done = False
    async for line in _whole_lines(pieces):
        name, _, data = line.partition(b":")
        if name in TEXTLESS:
            continue
        if name != b"data":
            raise invalid_request("a line is no field of an event")
        if is_done:
            raise invalid_request("a chunk came after [DONE]")
        is_done = data.strip() == DONE
        if not is_done:
            yield _text_of(data)


def _text_of(line: bytes) -> str:
    try:
        # Half of a pair of surrogates may be here, which the strict parser refuses.
        fields = DECODER.decode(line.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        raise NunatakError("invalid_json") from None
    match fields:
        case tuple((("text", str(text)),)):
            return text
        case _:
            problem = 'each chunk must be an object with one field, as in {"text": "Hello"}'
            raise invalid_request(problem)
