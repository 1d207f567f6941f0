"""Teachers: a task version, or another server of decisions, as the source of probabilities."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final

import httpx

from nunatak_client import Classification, NunatakClientError, TaskResult
from nunatak_client.transport import (
    Attempts,
    RetryPolicy,
    key_headers,
    server_url,
    tls_context,
    to_reply,
    without_proxy,
)
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.plain_text import visible
from nunatak_contract.problems import REASONS
from nunatak_contract.protocols import PROTOCOLS, Protocol, UnusableReplyError
from nunatak_contract.questions import QuestionCard
from nunatak_model import TextInput
from nunatak_training.data.teaching import Shares, Teacher
from nunatak_training.kinds import TaskKind

OF_A_TEXT: Final = frozenset({400, 413, 422, 500, 502, 504})
"""Statuses that may be the fault of one text; after any other, no text has an answer."""
SHOWN_CHARACTERS: Final = 200
CALLS: Final = 4
"""Calls of an upstream at a time."""
RETRIES: Final = RetryPolicy(retries=5, base_delay_s=0.5, max_delay_s=30.0)


def task_teacher(
    manifest: TaskManifest, ask: Callable[[Sequence[TextInput]], Iterable[TaskResult]]
) -> Teacher:
    """A task version; `ask` gives its answer to each input, and may raise an input's error."""
    kinds = {(it.head, it.problem_type): it for it in TaskKind}
    kind = kinds[manifest.head.kind, manifest.head.problem_type]

    def answers(inputs: Sequence[TextInput]) -> Iterator[Shares | NunatakError]:
        place = 0
        while place < len(inputs):
            try:
                for result in ask(inputs[place:]):
                    place += 1
                    if result.error is None or len(inputs) == 1:
                        yield shares_in(result, kind)
                    else:
                        # The error of an input fails the other inputs of its request too.
                        yield from answers(inputs[place - 1 : place])
            except NunatakError as error:
                if REASONS[error.code].status is not HTTPStatus.UNPROCESSABLE_ENTITY:
                    raise
                place += 1
                yield error

    return Teacher(
        name=manifest.reference,
        digest=manifest.content,
        kind=kind,
        labels=() if kind is TaskKind.REGRESSION else manifest.head.labels,
        ask=answers,
    )


def shares_in(result: TaskResult, kind: TaskKind) -> Shares | NunatakError:
    """The probabilities of an answer to one input; a value is its own label."""
    try:
        said = result.require()
    except NunatakClientError as error:
        return error
    if not isinstance(said, Classification):
        raise TypeError(f"expected an answer of a classification, got {type(said).__name__}")
    scores = {it.label: it.score for it in said.outputs[0]}
    if kind is not TaskKind.REGRESSION:
        return scores
    (value,) = scores.values()
    return {repr(value): 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """A server of decisions that answers the question of a card, by System One or by OpenAI."""

    url: str
    """Ends in `/v1/systemone` or `/v1/decisions`; without a path it gets the first."""
    card: QuestionCard
    model: str
    key: str = field(default="", repr=False)
    deadline_s: float = 30.0
    """Of each text, with further attempts."""
    kind: TaskKind | None = None
    """`REGRESSION` makes a value of a score."""
    transport: httpx.BaseTransport | None = None

    def teacher(self) -> Teacher:
        """Check everything that can be checked without a call."""
        url, protocol = self._place()
        said = protocol.say(self.card.question)
        if said is None:
            raise _invalid(f"the protocol of {protocol.name} cannot say the question")
        labels = self._labels()
        client = httpx.Client(
            headers={"content-type": "application/json", **key_headers(self.key)},
            verify=tls_context(),
            mounts=without_proxy(url),
            transport=self.transport,
            limits=httpx.Limits(max_connections=CALLS),
        )

        def answer(text: TextInput) -> Shares | NunatakError:
            if not isinstance(text, str):
                return _bad("a question is about one text, and the row has a pair")
            body = json.dumps(protocol.body(self.model, text, [said])).encode()
            try:
                (shares,) = protocol.read(self._reply(client, url, body), [self.card.question])
            except UnusableReplyError as error:
                return _bad(f"its reply is not usable: {error}")
            except _TextError as error:
                return _bad(str(error))
            if shares is None:
                return _bad("it refuses the question")
            return dict(zip(labels, shares, strict=True))

        def answers(inputs: Sequence[TextInput]) -> Iterator[Shares | NunatakError]:
            # The end of `map` cancels the calls that wait.
            with client, ThreadPoolExecutor(CALLS) as pool:
                yield from pool.map(answer, inputs)

        is_value = self.kind is TaskKind.REGRESSION
        return Teacher(
            name=str(url),
            digest=self.card.question.digest,
            kind=TaskKind.REGRESSION if is_value else TaskKind.SINGLE_LABEL,
            labels=() if is_value else labels,
            ask=answers,
        )

    def _place(self) -> tuple[httpx.URL, Protocol]:
        url = server_url(self.url)
        if url.userinfo or url.query or url.fragment:
            # The message must not contain the URL, which may hold a secret.
            raise _invalid(
                "--upstream must have no user, query or fragment; name a file with the key in "
                "--upstream-key"
            )
        if url.path in {"", "/"}:
            url = url.copy_with(path=next(iter(PROTOCOLS)))
        found = next((it for end, it in PROTOCOLS.items() if url.path.endswith(end)), None)
        if found is None:
            raise _invalid(f"--upstream must end in {' or '.join(PROTOCOLS)}, got {url.path}")
        return url, found

    def _labels(self) -> tuple[str, ...]:
        """The label of each outcome, as the card will expect it; of values, numbers."""
        card, outcomes = self.card, self.card.question.outcomes
        if self.kind not in {None, TaskKind.SINGLE_LABEL, TaskKind.REGRESSION}:
            raise _invalid(f"a question is learnt as single-label or regression, got {self.kind}")
        if self.kind is TaskKind.REGRESSION:
            if card.question.type != "score":
                raise _invalid(f"--kind regression needs a score, got a {card.question.type}")
            last = len(outcomes) - 1
            lowest, highest = card.bounds or (0.0, float(last))
            return tuple(repr(lowest + (highest - lowest) * it / last) for it in range(last + 1))
        named = card.names
        return tuple(named[it] for it in outcomes)

    def _reply(self, client: httpx.Client, url: httpx.URL, body: bytes) -> bytes:
        attempts = Attempts(RETRIES, deadline_s=self.deadline_s, clock=time.monotonic)
        while True:
            try:
                response = client.post(
                    url, content=body, headers=attempts.headers(), timeout=attempts.timeout_s(0)
                )
            except httpx.ReadTimeout as error:
                raise _TextError(f"it has not answered within {self.deadline_s:g} s") from error
            except httpx.RequestError as error:
                time.sleep(attempts.after_failure(error))
                continue
            if response.status_code == HTTPStatus.OK:
                return response.content
            delay_s = attempts.after_reply(to_reply(response))
            if delay_s is not None:
                time.sleep(delay_s)
            elif response.status_code in OF_A_TEXT:
                raise _TextError(_told(response))
            else:
                raise _failed(url, response)


class _TextError(Exception):
    """One text has no answer."""


def _failed(url: httpx.URL, response: httpx.Response) -> NunatakError:
    hints = {401: "; is the key right (--upstream-key)?", 403: "; may the key ask?"}
    hint = hints.get(response.status_code, "")
    return _bad(f"{url} gives no answer: {_told(response)}{hint}")


def _told(response: httpx.Response) -> str:
    return f"HTTP {response.status_code} {visible(response.text[:SHOWN_CHARACTERS])}".rstrip()


def key_in(path: Path | None) -> str:
    """The key in a file; none without a file."""
    try:
        key = "" if path is None else path.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise _invalid(f"--upstream-key {path} cannot be read: {error}") from error
    if path is not None and not key:
        raise _invalid(f"--upstream-key {path} is empty")
    return key


def _bad(problem: str) -> NunatakError:
    return NunatakError("teacher_failed", problem=problem)


def _invalid(problem: str) -> NunatakError:
    return NunatakError("invalid_option", problem=problem)
