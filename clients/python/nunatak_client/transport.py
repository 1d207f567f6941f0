"""Transport of requests, for both clients: the address, the key, the connections, the retries.

`VerdictExchange` is the transport of a request that is answered while its body is sent, as bytes.
"""

import json
import math
import os
import random
import re
import ssl
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, Generic, Never, TypeVar
from urllib.request import getproxies

import h11
import httpcore
import httpx
from pydantic import ValidationError

from nunatak_client.calls import path_segment
from nunatak_client.errors import (
    ConnectionFailedError,
    DeadlineExceededError,
    InvalidInputError,
    InvalidResponseError,
    NunatakClientError,
)
from nunatak_client.replies import Reply, error_of, raise_for_problem
from nunatak_contract.names import API_KEY_VARIABLE
from nunatak_contract.record import problems_text
from nunatak_contract.wire import DEADLINE_HEADER, LINES_TYPE, StreamEvent

DEFAULT_URL = "http://127.0.0.1:8080"
DEFAULT_TIMEOUT_S = 30.0
MAX_AT_ONCE: Final = 100
"""Calls that a client sends at once; further calls wait in the client. The pool of httpx takes time
as the square of the calls that wait in it, and their deadline headers are written before."""
# After the deadline the server answers 504. The client waits this long for that answer.
DEADLINE_SLACK_S = 1.0

_SENDABLE_KEY = re.compile(r"[!-~]+")
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpcore.ConnectError, httpcore.ConnectTimeout)


def server_url(url: str) -> httpx.URL:
    """Check the address of a server.

    Raises:
        InvalidInputError: not an http or https URL with a host.
    """
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise InvalidInputError(f"server must be a URL such as {DEFAULT_URL}: {error}") from error
    is_reachable = parsed.host and (parsed.port or 1) < 2**16
    if parsed.scheme not in {"http", "https"} or not is_reachable:
        raise InvalidInputError(f"server must be a URL such as {DEFAULT_URL}, got {url!r}")
    if parsed.userinfo or parsed.query or parsed.fragment:  # They may hold a secret.
        raise InvalidInputError(
            "a server's URL has no user, query or fragment; a key has its own option"
        )
    return parsed


def seconds(name: str, value: float, *, above: float = 0) -> float:
    """Check a length of time.

    Raises:
        InvalidInputError: not a number, or no time that a timer can wait.
    """
    if isinstance(value, int | float) and above < value <= threading.TIMEOUT_MAX:
        return value
    raise InvalidInputError(
        f"{name} must be a number of seconds above {above:g}, at most {threading.TIMEOUT_MAX:.0f}, "
        f"got {value!r}"
    )


def key_headers(api_key: str | None) -> dict[str, str]:
    """Return the header with the given key, or with the key of the environment.

    Raises:
        InvalidInputError: the key holds a character that no header may have.
    """
    key = api_key if api_key is not None else os.environ.get(API_KEY_VARIABLE, "")
    if not key:
        return {}
    if _SENDABLE_KEY.fullmatch(key) is None:
        # The message must not contain the key, because logs may contain the message.
        raise InvalidInputError(
            f"an API key must be printable ASCII without spaces; check {API_KEY_VARIABLE}, for "
            "example for a line break at the end"
        )
    return {"authorization": f"Bearer {key}"}


def tls_context(url: httpx.URL) -> ssl.SSLContext:
    """Return the certificates to trust, those of the environment first.

    Raises:
        InvalidInputError: the environment names certificates that cannot be read.
    """
    if url.scheme == "http":
        # Reading the certificates takes long, so a client that needs none trusts none.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        raise InvalidInputError(
            f"the certificates that SSL_CERT_FILE or SSL_CERT_DIR names cannot be read: {error}"
        ) from error


def without_proxy(url: httpx.URL) -> dict[str, None]:
    """Return the addresses to reach without the proxy of the environment: those of this machine.

    A proxy would look for the server on its own machine.
    """
    host = url.host
    try:
        is_here = ip_address(host).is_loopback
    except ValueError:
        is_here = host == "localhost" or host.endswith(".localhost")
    return {f"all://[{host}]" if ":" in host else f"all://{host}": None} if is_here else {}


HttpT = TypeVar("HttpT", httpx.Client, httpx.AsyncClient)


class Connections(Generic[HttpT]):
    """The HTTP client of each process, and of each event loop.

    A forked process that used the connections of its parent would get answers to the parent's
    requests. An event loop cannot use the connections of another one.
    """

    def __init__(
        self,
        make: Callable[[], HttpT],
        *,
        can_repeat: bool,
        loop: Callable[[], AbstractEventLoop] | None = None,
    ) -> None:
        """Make the first HTTP client.

        Args:
            make: makes an HTTP client.
            can_repeat: whether `make` makes new connections at each call.
            loop: returns the running event loop; absent for a blocking client.

        Raises:
            InvalidInputError: the proxy of the environment cannot be used.
        """
        self._make = make
        self._can_repeat = can_repeat
        self._loop = loop
        self._pid = os.getpid()
        self._held: dict[AbstractEventLoop | None, HttpT] = {None: self._made()}
        self._inherited = list[object]()

    def __reduce__(self) -> Never:
        """Say why no client can be pickled or copied deeply."""
        raise InvalidInputError(
            "a client cannot be pickled, because connections belong to one process; send the "
            "address of the server, and make a client in each process"
        )

    def open(self) -> HttpT:
        """Return the HTTP client of this process and event loop.

        Raises:
            InvalidInputError: this client is closed, or the connections are not our own.
        """
        found = self.here()
        if found.is_closed:
            raise InvalidInputError("this client is closed; open another")
        return found

    def here(self) -> HttpT:
        """Return the HTTP client of this process and event loop.

        Raises:
            InvalidInputError: this process is a fork, and the connections are not our own.
        """
        if self._pid != os.getpid():
            if not self._can_repeat:
                raise InvalidInputError(
                    "this client has a transport of its own and was made before the fork of this "
                    "process; make another client after the fork"
                )
            # Kept, because the end of an object may write to the connections of the parent.
            self._inherited.append(self._held)
            self._held, self._pid = {}, os.getpid()
        loop = None if self._loop is None else self._loop()
        found = self._held.get(loop)
        if found is None:
            found = self._held[loop] = self._held.pop(None, None) or self._made()
            for it in [it for it in tuple(self._held) if it and it.is_closed()]:
                self._held.pop(it, None)  # In place, because loops of other threads add theirs.
        return found

    def _made(self) -> HttpT:
        try:
            return self._make()
        except (ImportError, ValueError, httpx.InvalidURL) as error:
            raise InvalidInputError(
                f"the proxy of the environment cannot be used ({error}); check HTTP_PROXY, "
                "HTTPS_PROXY, ALL_PROXY and NO_PROXY"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Capped exponential backoff with full jitter.

    Only requests without any effect are repeated: after a connection that was never made, and after
    a 429 or 503 with `Retry-After`.
    """

    retries: int = 2
    base_delay_s: float = 0.1
    max_delay_s: float = 5.0
    jitter: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        if type(self.retries) is not int or self.retries < 0:
            raise InvalidInputError(
                f"retries must be a RetryPolicy, or a whole number from 0, got {self.retries!r}"
            )

    def delay_s(self, attempt: int, at_least_s: float = 0.0) -> float | None:
        """Seconds to wait after the failed `attempt` (from 0); `None` means no further attempt."""
        if attempt >= self.retries or at_least_s > self.max_delay_s:
            return None
        backoff_s = min(self.max_delay_s, self.base_delay_s * 2.0 ** min(attempt, 63))
        return max(at_least_s, backoff_s * self.jitter())


class Attempts:
    """The attempts of one call. All attempts share the call's deadline."""

    def __init__(
        self, policy: RetryPolicy, *, deadline_s: float | None, clock: Callable[[], float]
    ) -> None:
        self._policy = policy
        self._clock = clock
        if deadline_s is not None:
            deadline_s = clock() + seconds("deadline_s", deadline_s, above=-math.inf)
        self._ends_at = deadline_s
        self._failed = 0
        self._late_at = math.inf

    def headers(self) -> dict[str, str]:
        """Headers of the next attempt, with the remaining time of the deadline.

        Raises:
            DeadlineExceededError: no time remains.
        """
        headers = {"accept": "application/json", "content-type": "application/json"}
        remaining_s = self._remaining_s()
        if remaining_s is None:
            return headers
        if remaining_s <= 0:
            late = "the deadline passed before the request could be sent"
            raise DeadlineExceededError(code="deadline_exceeded", status=504, detail=late)
        return headers | {DEADLINE_HEADER: str(max(1, round(remaining_s * 1000)))}

    def timeout_s(self, default_s: float) -> float:
        """Seconds to wait for the answer to the attempt that begins now."""
        remaining_s = self._remaining_s()
        timeout_s = default_s if remaining_s is None else remaining_s + DEADLINE_SLACK_S
        self._late_at = self._clock() + timeout_s
        return timeout_s

    def check_time(self, response: httpx.Response, *, has_lines: bool = False) -> None:
        """End an answer that comes too slowly; the transport bounds only the time of each part.

        Without a deadline, an answer of lines may take any time: the caller decides when to read.

        Raises:
            httpx.ReadTimeout: the time is over.
        """
        if (not has_lines or self._ends_at is not None) and self._clock() > self._late_at:
            raise httpx.ReadTimeout("the time is over", request=response.request)

    def after_failure(self, error: httpx.RequestError | httpx.InvalidURL) -> float:
        """Seconds to wait before the next attempt.

        Raises:
            ConnectionFailedError: there is no further attempt.
            InvalidResponseError: an answer arrived, but was garbled.
            InvalidInputError: a name is too long for an address, or a redirect has no address.
        """
        if isinstance(error, httpx.InvalidURL):
            raise InvalidInputError(
                f"an address cannot be used ({error}); check the length of names, and whether the "
                "server redirects"
            ) from error
        delay_s = self._next_delay_s(0.0) if isinstance(error, _UNSENT) else None
        if delay_s is None:
            raise failure_of(error, error.request.url) from error
        return delay_s

    def after_reply(self, reply: Reply) -> float | None:
        """Seconds to wait before the next attempt; `None` means that this reply is final."""
        if reply.status not in {429, 503} or reply.retry_after_s is None:
            return None
        return self._next_delay_s(reply.retry_after_s)

    def _next_delay_s(self, at_least_s: float) -> float | None:
        delay_s = self._policy.delay_s(self._failed, at_least_s)
        self._failed += 1
        remaining_s = self._remaining_s()
        if delay_s is None or (remaining_s is not None and delay_s >= remaining_s):
            return None
        return delay_s

    def _remaining_s(self) -> float | None:
        return None if self._ends_at is None else self._ends_at - self._clock()


def failure_of(error: Exception, url: httpx.URL) -> NunatakClientError:
    reason = str(error).removesuffix(".") or type(error).__name__
    server = f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}"
    match error:
        case httpx.DecodingError():
            return InvalidResponseError(f"the answer of {server} cannot be decoded: {error}")
        case _ if isinstance(error, _UNSENT):
            has_proxy = not getproxies().keys().isdisjoint({"http", "https", "all"})
            proxy = ", and the proxy of the environment" if has_proxy else ""
            advice = f"is the server{proxy} running?"
            if "SSL" in reason:
                advice = f"if it speaks http, use http{server[5:]}"
            if "CERTIFICATE_VERIFY_FAILED" in reason:
                advice = "name the file of its authority in SSL_CERT_FILE"
            return ConnectionFailedError(f"cannot connect to {server} ({reason}); {advice}")
        case httpx.TimeoutException() | httpcore.TimeoutException():
            return ConnectionFailedError(
                f"no answer from {server} in time; allow more with timeout_s or deadline_s"
            )
        case _:
            other = f"; if it speaks https, use https{server[4:]}" if url.scheme == "http" else ""
            return ConnectionFailedError(f"the connection to {server} broke: {reason}{other}")


PIECE_BYTES: Final = 65536


class Lines:
    """The lines of JSON in a stream of bytes: a line ends at a line feed alone.

    A JSON text may have other separators of lines, such as U+2028, within a string.
    """

    def __init__(self) -> None:
        self._rest = b""

    def received(self, data: bytes) -> list[bytes]:
        """Return the lines that are whole now, without empty lines."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [it for it in lines if it]


class VerdictExchange:
    """The bytes to send for the chunks of a text, and the events in the received bytes."""

    def __init__(self, url: httpx.URL, headers: Mapping[str, str], policy: str) -> None:
        """Ask the server at `url` for the verdict of a policy.

        Raises:
            InvalidInputError: the policy has no name.
        """
        self._protocol = h11.Connection(h11.CLIENT)
        target = f"{url.path.rstrip('/')}/v1/verdicts/{path_segment('policy', policy)}/stream"
        fields = {name: headers[name] for name in ("authorization",) if name in headers}
        fields |= dict.fromkeys(("content-type", "accept"), LINES_TYPE)
        fields |= {"host": url.netloc.decode(), "transfer-encoding": "chunked"}
        request = h11.Request(method="POST", target=target, headers=list(fields.items()))
        self.head = self._protocol.send(request) or b""
        self._reply: h11.Response | None = None
        self._refusal, self._lines = b"", Lines()
        self.is_over = False
        """Whether the last event is there."""

    def chunk(self, text: str) -> bytes:
        if not isinstance(text, str):
            # A delta of a language model may have no text.
            problem = f"a chunk must be a text, got {type(text).__name__}; send '' for none"
            raise InvalidInputError(problem)
        line = json.dumps({"text": text}).encode() + b"\n"
        return self._protocol.send(h11.Data(data=line)) or b""

    def end(self) -> bytes:
        return self._protocol.send(h11.EndOfMessage()) or b""

    def received(self, data: bytes) -> Iterator[StreamEvent]:
        """Yield the events that are whole. No bytes mean that the connection has ended.

        Raises:
            ApiError: the server refused, or could not judge: treat the text as blocked.
            ConnectionFailedError: the answer ended without a final verdict.
            InvalidResponseError: the answer does not follow the contract.
        """
        try:
            self._protocol.receive_data(data)
            while not self.is_over:
                match self._protocol.next_event():
                    case h11.Response() as reply:
                        self._reply = reply
                    case h11.Data(data=part):
                        yield from self._events(part)
                    case h11.EndOfMessage() | h11.ConnectionClosed():
                        self._refuse()
                    case _:
                        return
        except h11.RemoteProtocolError as error:
            raise ConnectionFailedError(f"the stream of the verdict broke: {error}") from error

    def _events(self, part: bytes) -> Iterator[StreamEvent]:
        if self._reply is None or self._reply.status_code // 100 != 2:
            self._refusal += part
            return
        for line in self._lines.received(part):
            try:
                event = StreamEvent.model_validate_json(line)
            except ValidationError as error:
                raise InvalidResponseError(f"expected an event: {problems_text(error)}") from error
            if event.error is not None:
                raise error_of(event.error)
            if event.final and event.verdict is None:
                raise InvalidResponseError("the last event has no verdict; is this Nunatak?")
            self.is_over = event.final
            yield event

    def _refuse(self) -> None:
        if self._reply is not None:
            headers = httpx.Headers(list(self._reply.headers))
            raise_for_problem(
                Reply(status=self._reply.status_code, headers=headers, content=self._refusal)
            )
        raise ConnectionFailedError("the stream of the verdict ended without a final verdict")
