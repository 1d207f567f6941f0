"""The upstream: another server that answers typed questions, asked over HTTP.

Its failures are failures of the questions that it was asked. No message, log line or metric has a
text, the key, or words of a reply.
"""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import orjson

from nunatak_client.transport import key_headers, tls_context, without_proxy
from nunatak_contract.errors import NunatakError, invalid_settings
from nunatak_contract.questions import TypedQuestion
from nunatak_contract.upstreams import PROTOCOLS, Said, Shares, UnusableReplyError, read_reply
from nunatak_contract.wire import DEADLINE_HEADER
from nunatak_server.decisions.answers import AnswerSource, AskedQuestion, Decisions, QuestionAnswer
from nunatak_server.errors import DeadlineExceededError
from nunatak_server.outgoing import http_client, whole_body
from nunatak_server.predict.types import Handling
from nunatak_server.scheduler.admission import CALLER_SHARE, Admission
from nunatak_server.scheduler.turns import FairSemaphore, within
from nunatak_server.settings import ServerSettings

MAX_WAITING: Final = 16
"""Requests that may wait for each call that may run."""


class Upstream:
    """Asks one server; only the event loop thread may use it."""

    def __init__(self, settings: ServerSettings) -> None:
        """Read the key.

        Raises:
            NunatakError: `invalid_settings`, the file of the key cannot be used.
        """
        self._url = url = httpx.URL(settings.decisions_upstream)
        (self._protocol,) = (it for end, it in PROTOCOLS.items() if url.path.endswith(end))
        self._model = settings.decisions_upstream_model
        self._timeout_s = settings.decisions_upstream_timeout_ms / 1000
        num_calls = settings.decisions_upstream_calls
        self._calls = FairSemaphore(num_slots=num_calls)
        # Places of its own, so that a dead upstream fills no place of a task.
        self._places = Admission(
            max_requests=(1 + MAX_WAITING) * num_calls,
            max_tokens=0,
            max_bytes=0,
            caller_share=CALLER_SHARE if settings.knows_callers else None,
        )
        self._http = http_client(
            headers={
                "content-type": "application/json",
                **_key_headers(settings.decisions_upstream_key_file),
            },
            timeout=None,  # `_ask` bounds the whole call
            limits=httpx.Limits(max_connections=num_calls),
            verify=tls_context(url),
            mounts=without_proxy(url),
        )

    async def answer(
        self, asked: Sequence[AskedQuestion], text: str, *, handling: Handling
    ) -> Decisions:
        """Ask all questions about a text in one call. A failed call fails each question."""
        said = [self._protocol.say(it.question) for it in asked]
        sayable = {place: words for place, words in enumerate(said) if words is not None}
        unsaid = UnusableReplyError(f"the protocol of {self._protocol.name} cannot say it")
        found: list[Shares | Exception | None] = [unsaid] * len(asked)
        try:
            questions = [asked[place].question for place in sayable]
            shares = await self._ask(questions, list(sayable.values()), text, handling)
        except (NunatakError, UnusableReplyError) as error:
            shares = [error] * len(sayable)
        for place, it in zip(sayable, shares, strict=True):
            found[place] = it
        return Decisions(answers=tuple(map(self._answer, asked, found)))

    async def aclose(self) -> None:
        await self._http.aclose()

    def _answer(
        self, asked: AskedQuestion, found: Shares | Exception | None
    ) -> QuestionAnswer | NunatakError:
        match found:
            case tuple():
                return QuestionAnswer(
                    question=asked.question,
                    probabilities=found,
                    by=AnswerSource.UPSTREAM,
                    about={"model": self._model},
                )
            case NunatakError():
                return found
            case _:
                reason = str(found or "it refuses the question")
                return NunatakError("upstream_failed", question=asked.title, reason=reason)

    async def _ask(
        self,
        questions: Sequence[TypedQuestion],
        said: Sequence[Said],
        text: str,
        handling: Handling,
    ) -> Sequence[Shares | None]:
        if not said:
            return ()
        content = orjson.dumps(self._protocol.body(self._model, text, said))
        seconds, late = handling.deadline_s, DeadlineExceededError
        if self._timeout_s < seconds:
            seconds = self._timeout_s
            late = partial(UnusableReplyError, f"it has not answered within {seconds:g} s")
        with self._places.admit(handling.caller):
            data = await within(seconds, self._reply(content, handling.caller, seconds), late=late)
        return read_reply(self._protocol, data, questions)

    async def _reply(self, content: bytes, caller: str, seconds: float) -> bytes:
        ends_at = time.monotonic() + seconds
        try:
            async with self._calls.slot(caller):
                left_ms = max(1, int(1000 * (ends_at - time.monotonic())))
                request = self._http.build_request(
                    "POST", self._url, content=content, headers={DEADLINE_HEADER: str(left_ms)}
                )
                return await whole_body(await self._http.send(request, stream=True))
        except httpx.HTTPError as error:
            # Its message may have words of the reply.
            raise UnusableReplyError(f"the call failed ({type(error).__name__})") from None


def _key_headers(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    problem = "is empty"
    try:
        headers = key_headers(path.read_text("utf-8").strip())
    except OSError as error:
        headers, problem = {}, f"cannot be read ({error.strerror})"
    except (ValueError, NunatakError):
        headers, problem = {}, "has no key of printable ASCII"
    if not headers:
        problem = f"decisions_upstream_key_file {path} {problem}"
        raise invalid_settings(problem)
    return headers
