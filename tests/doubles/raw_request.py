"""Requests as bytes for the task `tone`, and the connections that send them to a server."""

import asyncio
import contextlib
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

CANARY = "swordfish"
GOOD_BODY = json.dumps({"inputs": "where is my parcel?"}).encode()
PREDICT = "/v1/tasks/tone/predict"
PREDICT_MANY = "/v1/predict"
END = b"\r\n"
_STATUS = re.compile(rb"^HTTP/1\.1 (\d{3}) ", re.MULTILINE)
MAX_ANSWER_BYTES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRequest:
    """The bytes that one connection sends; `may_pass` if a server may accept some of them."""

    name: str
    data: bytes
    may_pass: bool = False


def post(body: bytes, *, path: str = PREDICT, headers: tuple[bytes, ...] = ()) -> bytes:
    """Return a well-framed request that ends its connection."""
    head = [
        f"POST {path} HTTP/1.1".encode(),
        b"host: test",
        b"content-type: application/json",
        b"connection: close",
        b"content-length: %d" % len(body),
        *headers,
    ]
    return END.join(head) + END + END + body


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """The result of one request; `has_ended` unless the server kept the connection too long."""

    request: RawRequest
    data: bytes
    has_ended: bool
    seconds: float

    @property
    def statuses(self) -> list[int]:
        """The status of each answer on the connection."""
        return [int(status) for status in _STATUS.findall(self.data)]

    @property
    def fault(self) -> str | None:
        """The error of the server in a word; None if the server was right."""
        if not self.has_ended:
            return "hung"
        # A request with a deadline of a millisecond may fail.
        allowed = {504} if self.request.may_pass else set[int]()
        if any(status >= 500 and status not in allowed for status in self.statuses):
            return "failed"
        if not self.request.may_pass and any(status < 300 for status in self.statuses):
            return "passed"
        return None


def place_of(address: str) -> tuple[str, int]:
    parts = urlsplit(address)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def num_open_files() -> int:
    """Return the number of files and connections of this process."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - numbers, no paths


async def send_all(
    address: str, requests: Sequence[RawRequest], *, limit_s: float, at_once: int = 100
) -> list[Received]:
    """Send each request on its own connection, several at a time."""
    places = asyncio.Semaphore(at_once)

    async def send(request: RawRequest) -> Received:
        async with places:
            return await send_one(address, request, limit_s=limit_s)

    return await asyncio.gather(*map(send, requests))


async def send_one(address: str, request: RawRequest, *, limit_s: float) -> Received:
    """Send one request, and read until the server closes or the time is over."""
    started = time.monotonic()
    reader, writer = await asyncio.open_connection(*place_of(address))
    received = bytearray()
    has_ended = False
    try:
        async with asyncio.timeout(limit_s):
            writer.write(request.data)
            has_ended = await _read(reader, received)
    except TimeoutError:
        pass
    finally:
        writer.transport.abort()
    return Received(
        request=request,
        data=bytes(received),
        has_ended=has_ended,
        seconds=time.monotonic() - started,
    )


async def _read(reader: asyncio.StreamReader, received: bytearray) -> bool:
    with contextlib.suppress(ConnectionError):
        while (chunk := await reader.read(65_536)) and len(received) < MAX_ANSWER_BYTES:
            received += chunk
    return True
