"""Teachers: a task version, or another server of decisions, as the source of probabilities."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from time import monotonic, sleep
from typing import Final

import httpx
import torch

from nunatak_client.transport import (
    Attempts,
    RetryPolicy,
    key_headers,
    server_url,
    to_reply,
    without_proxy,
)
from nunatak_contract.errors import NunatakError
from nunatak_contract.plain_text import visible
from nunatak_contract.protocols import (
    PROTOCOLS,
    Protocol,
    Said,
    UnusableReplyError,
    read_reply,
)
from nunatak_contract.questions import QuestionCard
from nunatak_model import Backbone, Encoding, Row, TextInput, forward, load_backbone
from nunatak_registry import Registry
from nunatak_training.data.teaching import TAUGHT_KINDS, Shares, Teacher
from nunatak_training.kinds import TaskKind
from nunatak_training.loop.fit import predict
from nunatak_versions import PARAMETERS_ROLE, load_task

OF_A_TEXT: Final = frozenset({400, 413, 422, 500, 502, 504})
"""Statuses that may be the fault of one text; after any other, no text has an answer."""
CALLS: Final = 4
"""Calls of an upstream at a time."""
DEADLINE_S: Final = 30.0
"""Of a call, with further attempts."""
RETRIES: Final = RetryPolicy(retries=5, base_delay_s=0.5, max_delay_s=30.0)
SHOWN_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherChoice:
    """Who teaches: a task, an upstream with a question, or nobody: the texts have probabilities."""

    task: str | None = None
    backbone: str | None = None
    """Of the task; absent: the backbone of the run."""
    upstream: str | None = None
    """Ends in `/v1/systemone` or `/v1/decisions`; without a path it gets the first."""
    question: QuestionCard | str | None = None
    """Or the name of a card of the registry."""
    key: Path | None = None
    """The file with the key of the upstream."""
    model: str = "jev-latest"

    def __post_init__(self) -> None:
        """Refuse teachers that contradict each other before any work."""
        is_double = self.task is not None and self.upstream is not None
        if is_double or (self.upstream is None) != (self.question is None):
            raise _invalid(
                "expected a task as the teacher, or an upstream and its question, or neither for "
                "texts with the column `probabilities`"
            )

    def teacher(
        self, registry: Registry, backbone: Backbone, transport: httpx.BaseTransport | None = None
    ) -> Teacher | None:
        """Find the teacher; `transport` replaces the network."""
        if self.task is not None:
            own = backbone if self.backbone is None else load_backbone(self.backbone)
            return _task_teacher(self.task, registry, own)
        if self.upstream is None or self.question is None:
            return None
        card = self.question
        if isinstance(card, str):
            card = registry.questions.get(card).document
        url, protocol = _place(self.upstream)
        said = protocol.say(card.question)
        if said is None:
            raise _invalid(f"the protocol of {protocol.name} cannot say the question")
        asked = _Upstream(
            url=url, protocol=protocol, card=card, said=said, model=self.model, transport=transport,
            headers={"content-type": "application/json", **key_headers(_key_in(self.key))},
        )  # fmt: skip
        return Teacher(
            name=str(url),
            digest=card.question.digest,
            kind=TaskKind.SINGLE_LABEL,
            labels=asked.labels,
            ask=asked.answers,
        )


def _task_teacher(reference: str, registry: Registry, backbone: Backbone) -> Teacher:
    manifest = registry.resolve(reference)
    head = manifest.head
    kinds = {(it.head, it.problem_type): it for it in TaskKind}
    kind = kinds[head.kind, head.problem_type]
    if kind not in TAUGHT_KINDS:
        raise _invalid(f"{manifest.reference} is a {kind} task, which teaches nothing")
    branch = load_task(manifest, registry.read_blob(manifest, PARAMETERS_ROLE), backbone).branch

    def logits(encodings: Sequence[Encoding], *, dropout: float) -> list[torch.Tensor]:
        rows = [Row(encoding=encoding, branch=branch) for encoding in encodings]
        return forward(backbone, rows, dropout=dropout)

    def answers(inputs: Sequence[TextInput]) -> Iterator[Shares]:
        encodings = backbone.tokenizer.encode(inputs, max_length=manifest.max_length)
        for row in predict(logits, encodings):
            values = row.double()
            if kind is TaskKind.REGRESSION:
                yield {repr(values.item()): 1.0}
            else:
                is_single = kind is TaskKind.SINGLE_LABEL
                shares = values.softmax(0) if is_single else values.sigmoid()
                yield dict(zip(head.labels, map(float, shares), strict=True))

    labels = () if kind is TaskKind.REGRESSION else head.labels
    return Teacher(
        name=manifest.reference, digest=manifest.content, kind=kind, labels=labels, ask=answers
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Upstream:
    url: httpx.URL
    protocol: Protocol
    card: QuestionCard
    said: Said
    model: str
    headers: dict[str, str]
    transport: httpx.BaseTransport | None

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.card.names[it] for it in self.card.question.outcomes)

    def answers(self, inputs: Sequence[TextInput]) -> Iterator[Shares | NunatakError]:
        """Ask about each input; the first alone, because what fails all inputs fails there."""
        mounts = without_proxy(self.url)
        with (
            httpx.Client(headers=self.headers, transport=self.transport, mounts=mounts) as client,
            ThreadPoolExecutor(CALLS) as pool,
        ):
            answer = partial(self._answer, client)
            yield from map(answer, inputs[:1])
            yield from pool.map(answer, inputs[1:])

    def _answer(self, client: httpx.Client, text: TextInput) -> Shares | NunatakError:
        if not isinstance(text, str):
            return _failed("a question is about one text, and the row has a pair")
        body = json.dumps(self.protocol.body(self.model, text, [self.said])).encode()
        try:
            response = self._reply(client, body)
            if response.status_code in OF_A_TEXT:
                return _failed(_told(response))
            if response.status_code != HTTPStatus.OK:
                raise _failed(f"{self.url} does not answer: {_told(response)}")
            (shares,) = read_reply(self.protocol, response.content, [self.card.question])
        except UnusableReplyError as error:
            return _failed(f"the reply cannot be used: {error}")
        except httpx.HTTPError as error:
            return _failed(f"no answer within {DEADLINE_S:g} s ({type(error).__name__})")
        if shares is None:
            return _failed("the question is refused")
        return dict(zip(self.labels, shares, strict=True))

    def _reply(self, client: httpx.Client, body: bytes) -> httpx.Response:
        attempts = Attempts(RETRIES, deadline_s=DEADLINE_S, clock=monotonic)
        while True:
            try:
                response = client.post(
                    self.url, content=body, headers=attempts.headers(), timeout=DEADLINE_S
                )
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                sleep(attempts.after_failure(error))
                continue
            delay_s = attempts.after_reply(to_reply(response))
            if delay_s is None:
                return response
            sleep(delay_s)


def _place(address: str) -> tuple[httpx.URL, Protocol]:
    url = server_url(address)
    if url.userinfo or url.query or url.fragment:
        # The message must not contain the URL, which may hold a secret.
        raise _invalid("an upstream has no user, query or fragment; put its key into a file")
    if url.path in {"", "/"}:
        url = url.copy_with(path=next(iter(PROTOCOLS)))
    found = next((it for end, it in PROTOCOLS.items() if url.path.endswith(end)), None)
    if found is None:
        raise _invalid(f"an upstream must end in {' or '.join(PROTOCOLS)}, got {url.path}")
    return url, found


def _key_in(path: Path | None) -> str:
    # Empty and not None, which would send our own key to the upstream.
    if path is None:
        return ""
    try:
        key = path.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise _invalid(f"the key of the upstream in {path} cannot be read: {error}") from error
    if not key:
        raise _invalid(f"the file {path} holds no key of the upstream")
    return key


def _told(response: httpx.Response) -> str:
    return f"HTTP {response.status_code} {visible(response.text[:SHOWN_CHARACTERS])}".rstrip()


def _failed(problem: str) -> NunatakError:
    return NunatakError("teacher_failed", problem=problem)


def _invalid(problem: str) -> NunatakError:
    return NunatakError("invalid_option", problem=problem)
