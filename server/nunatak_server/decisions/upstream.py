"""The upstream: another server that answers typed questions, asked over HTTP.

Its failures are failures of the questions that it was asked. No message, log line or metric has a
text, the key, or words of a reply.
"""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final, Self

import httpx
import orjson

from nunatak_client.transport import key_headers, tls_context, without_proxy
from nunatak_contract.enums import UnknownQuestions
from nunatak_contract.errors import NunatakError
from nunatak_contract.protocols import (
    PROTOCOLS,
    Said,
    Shares,
    UnusableReplyError,
    read_reply,
)
from nunatak_contract.wire import DEADLINE_HEADER
from nunatak_server.decisions.answers import (
    Answered,
    AnswerSource,
    AskedQuestion,
    QuestionAnswer,
)
from nunatak_server.errors import DeadlineExceededError
from nunatak_server.predict.types import Handling
from nunatak_server.scheduler.turns import FairSemaphore, within
from nunatak_server.settings import ServerSettings

MAX_REPLY_BYTES: Final = 8 * 1024**2
MAX_WAITING: Final = 16
"""Requests that may wait for each call that may run."""
TRIES: Final = 2
"""A call is sent again once if its connection broke before the answer, and never after a status."""


class Upstream:
    """Asks one server; only the event loop thread may use it."""

    def __init__(
        self, settings: ServerSettings, *, url: httpx.URL, headers: dict[str, str]
    ) -> None:
        """`headers` have the key. `Upstream.of` reads and checks them with the URL."""
        self._url, self._model = url, settings.decisions_upstream_model
        (self._protocol,) = (it for end, it in PROTOCOLS.items() if url.path.endswith(end))
        self._timeout_s = settings.decisions_upstream_timeout_ms / 1000
        self._calls = FairSemaphore(num_slots=settings.decisions_upstream_calls)
        self._num_free = (1 + MAX_WAITING) * settings.decisions_upstream_calls
        self._http = httpx.AsyncClient(
            headers={"content-type": "application/json", **headers},
            timeout=None,  # noqa: S113 - `_call` bounds the whole call
            limits=httpx.Limits(max_connections=settings.decisions_upstream_calls),
            verify=tls_context(),
            mounts=without_proxy(url),
        )

    @classmethod
    def of(cls, settings: ServerSettings) -> Self | None:
        """Return the upstream of the settings, or None without one.

        Raises:
            NunatakError: `invalid_settings`, the URL or the file of the key cannot be used, or
                unknown questions need an upstream and there is none.
        """
        if not settings.decisions_upstream:
            if settings.decisions_unknown is UnknownQuestions.UPSTREAM:
                raise _invalid("decisions_upstream must be set if decisions_unknown is `upstream`")
            if settings.collect is not None:
                raise _invalid("decisions_upstream must be set if texts are collected (collect)")
            return None
        return cls(
            settings,
            url=_checked_url(settings.decisions_upstream),
            headers=_key_headers(settings.decisions_upstream_key_file),
        )

    async def answer(
        self, asked: Sequence[AskedQuestion], text: str, *, handling: Handling
    ) -> Answered:
        """Ask all questions about a text in one call. A failed call fails each question."""
        said = [self._protocol.say(it.question) for it in asked]
        sayable = [(it, words) for it, words in zip(asked, said, strict=True) if words is not None]
        found = iter(await self._outcomes(sayable, text, handling) if sayable else ())
        unsaid = f"the protocol of {self._protocol.name} cannot say the question"
        return Answered(
            answers=tuple(
                _failed(it, unsaid) if words is None else self._answer(it, next(found))
                for it, words in zip(asked, said, strict=True)
            )
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    def _answer(
        self, asked: AskedQuestion, outcome: Shares | str | NunatakError
    ) -> QuestionAnswer | NunatakError:
        match outcome:
            case NunatakError():
                return outcome
            case str():
                return _failed(asked, outcome)
            case _:
                return QuestionAnswer(
                    question=asked.question,
                    probabilities=outcome,
                    by=AnswerSource.UPSTREAM,
                    about={"model": self._model},
                )

    async def _outcomes(
        self, asked: Sequence[tuple[AskedQuestion, Said]], text: str, handling: Handling
    ) -> Sequence[Shares | str | NunatakError]:
        """Return the probabilities of each question, or why there are none."""
        body = self._protocol.body(self._model, text, [words for _, words in asked])
        try:
            data = await self._send(orjson.dumps(body), handling)
            read = read_reply(self._protocol, data, [it.question for it, _ in asked])
        except DeadlineExceededError as error:
            return [error] * len(asked)
        except UnusableReplyError as error:
            return [f"its reply is not usable: {error}"] * len(asked)
        except _CallError as error:
            return [str(error)] * len(asked)
        return ["it refuses the question" if it is None else it for it in read]

    async def _send(self, body: bytes, handling: Handling) -> bytes:
        """Return the reply to a call, within the deadline of the caller."""
        if not self._num_free:
            raise _CallError("too many questions wait for it")
        is_own = self._timeout_s < handling.deadline_s
        late = _CallError(f"it has not answered within {self._timeout_s:g} s")
        self._num_free -= 1
        try:
            return await within(
                min(self._timeout_s, handling.deadline_s),
                self._call(body, handling),
                late=lambda: late if is_own else DeadlineExceededError(),
            )
        finally:
            self._num_free += 1

    async def _call(self, body: bytes, handling: Handling) -> bytes:
        seconds = min(self._timeout_s, handling.deadline_s)
        headers = {DEADLINE_HEADER: str(max(1, int(1000 * seconds)))}
        async with self._calls.slot(handling.caller):
            for tries in range(1, TRIES + 1):
                request = self._http.build_request("POST", self._url, content=body, headers=headers)
                try:
                    return await _reply_to(self._http, request)
                except httpx.HTTPError as error:
                    if tries == TRIES or not isinstance(
                        error, httpx.NetworkError | httpx.RemoteProtocolError
                    ):
                        raise _CallError(f"the call failed ({type(error).__name__})") from None
                await asyncio.sleep(0)
        raise AssertionError("unreachable")


class _CallError(Exception):
    """A call has no reply. The message repeats nothing of the request."""


async def _reply_to(http: httpx.AsyncClient, request: httpx.Request) -> bytes:
    reply = await http.send(request, stream=True)
    try:
        if reply.status_code != HTTPStatus.OK:
            raise _CallError(f"its status is {reply.status_code}")
        data = bytearray()
        async for part in reply.aiter_bytes():
            data += part
            if len(data) > MAX_REPLY_BYTES:
                raise _CallError(f"its reply has more than {MAX_REPLY_BYTES} bytes")
        return bytes(data)
    finally:
        await reply.aclose()


def _failed(asked: AskedQuestion, reason: str) -> NunatakError:
    return NunatakError("upstream_failed", question=asked.title, reason=reason)


def _checked_url(value: str) -> httpx.URL:
    try:
        url = httpx.URL(value)
    except httpx.InvalidURL:
        url = httpx.URL()
    is_known = any(url.path.endswith(it) for it in PROTOCOLS)
    if url.scheme not in {"http", "https"} or not url.host or not is_known:
        raise _invalid(
            "decisions_upstream must be an http or https URL whose path ends in "
            f"{' or '.join(PROTOCOLS)}, such as https://host/v1/systemone"
        )
    if url.userinfo or url.query or url.fragment:
        # The message must not contain the URL, because logs may contain the message.
        raise _invalid(
            "decisions_upstream must have no user, query or fragment; name a file with the key in "
            "decisions_upstream_key_file"
        )
    return url


def _key_headers(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        key = path.read_text("utf-8").strip()
        headers = key_headers(key)
    except (OSError, ValueError, NunatakError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it has no printable ASCII key"
        raise _invalid(f"decisions_upstream_key_file {path}: {reason}") from None
    if not headers:
        raise _invalid(f"decisions_upstream_key_file {path} is empty")
    return headers


def _invalid(problem: str) -> NunatakError:
    return NunatakError("invalid_settings", problem=problem)
