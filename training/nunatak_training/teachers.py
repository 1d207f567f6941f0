"""Teachers: a task version, or another server of decisions, as the source of probabilities."""

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from typing import Final

import httpx

from nunatak_client import Client
from nunatak_client.calls import Call
from nunatak_client.errors import NunatakClientError
from nunatak_client.replies import Reply
from nunatak_client.transport import Attempts, RetryPolicy, key_headers, server_url
from nunatak_contract.enums import Reads
from nunatak_contract.errors import NunatakError, invalid_option
from nunatak_contract.plain_text import visible
from nunatak_contract.questions import QuestionCard
from nunatak_contract.upstreams import (
    CALL_HEADERS,
    PROTOCOLS,
    ReplyBody,
    UnusableReplyError,
    UpstreamProtocol,
    read_reply,
)
from nunatak_model import Backbone, TextInput, load_backbone
from nunatak_registry import Registry
from nunatak_training.cache import usable
from nunatak_training.data.examples import Teacher
from nunatak_training.data.rows import TEXT_KINDS, VALUE_NAME
from nunatak_training.kinds import TaskKind, kind_of_head
from nunatak_training.loop.checkpoint import held_files
from nunatak_training.loop.fit import logits_of, predict
from nunatak_versions import PARAMETERS_ROLE, load_task

OF_A_TEXT: Final = frozenset({400, 413, 422, 500, 502, 504})
"""Statuses that may be the fault of one text; after any other, no text has an answer."""
AT_ONCE: Final = 256
"""Texts that a task answers before the progress shows them."""
CALLS: Final = 4
"""Calls of an upstream at a time."""
DEADLINE_S: Final = 30.0
"""Of a call, with further attempts."""
RETRIES: Final = RetryPolicy(retries=5, base_delay_s=0.5, max_delay_s=30.0)
SHOWN_BYTES: Final = 200

Shares = Mapping[str, float]


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
    model: str | None = None

    def __post_init__(self) -> None:
        """Refuse a choice that is not whole before any work."""
        of_upstream = (self.upstream, self.question, self.key, self.model)
        given = [it is not None for it in of_upstream]
        is_double = any(given) if self.task is not None else self.backbone is not None
        if is_double or (any(given) and not all(given[:2])):
            raise invalid_option(
                "expected a task as the teacher (and maybe its backbone), or an upstream and its "
                "question (and maybe a key and a model), or neither for texts with the column "
                "`probabilities`"
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
        if len({*card.names.values()}) < len(card.names):
            raise invalid_option(
                "two answers of the question have one label; give a card with `labels`"
            )
        url, protocol = _place(self.upstream)
        key = _key_in(self.key)
        asked = _Upstream(url, api_key=key, retries=RETRIES, transport=transport)
        return _upstream_teacher(asked, url, protocol, card, self.model or "jev-latest")


@contextmanager
def kept_answers(
    choice: TeacherChoice | None, teacher: Teacher | None, folder: Path | None
) -> Generator[Teacher | None]:
    """Yield a teacher that is paid once: the cache keeps what an upstream answers a run that stops.

    The answers go at the end of the block, unless it fails. Only one of several runs that ask one
    upstream at once keeps answers.
    """
    if folder is None or teacher is None or choice is None or choice.upstream is None:
        yield teacher
        return
    asked = repr((teacher.name, teacher.digest, teacher.labels, choice.model))
    key = sha256(asked.encode()).hexdigest()
    with ExitStack() as held:
        try:
            root = held.enter_context(held_files(key, folder))
        except NunatakError as error:
            if error.code != "already_training":
                raise
            yield teacher
            return
        path = root / f"{key}.answers.jsonl"
        yield replace(teacher, ask=partial(_asked_once, teacher, path))
        path.unlink(missing_ok=True)


def _asked_once(
    teacher: Teacher, path: Path, inputs: Sequence[TextInput]
) -> Iterator[Shares | NunatakError]:
    """Yield the answers that a file has, and those of the teacher, which the file gets."""
    keys = [sha256(repr(it).encode()).hexdigest() for it in inputs]
    with usable(path.parent):
        file = path.open("a", encoding="utf-8")
    with file:
        known = dict[str, Shares]()
        for line in path.read_bytes().splitlines():
            with suppress(ValueError, TypeError):  # a kill or a power cut damages lines
                known |= json.loads(line)
        new = [it for it, key in zip(inputs, keys, strict=True) if key not in known]
        rest = iter(teacher.ask(new))
        for key in keys:
            answer = known[key] if key in known else next(rest)
            if key not in known and not isinstance(answer, NunatakError):
                # A line break comes first, because a kill may have cut the line before.
                print(f"\n{json.dumps({key: answer})}", end="", file=file, flush=True)
            yield answer


def _task_teacher(reference: str, registry: Registry, backbone: Backbone) -> Teacher:
    manifest = registry.resolve(reference)
    head, kind = manifest.head, kind_of_head(manifest.head)
    if kind not in TEXT_KINDS:
        raise invalid_option(f"{manifest.reference} is a {kind} task, which teaches nothing")
    data = registry.read_blob(manifest, PARAMETERS_ROLE)
    logits = logits_of(backbone, load_task(manifest, data, backbone).branch)

    def answers(inputs: Sequence[TextInput]) -> Iterator[Shares | NunatakError]:
        encodings = backbone.tokenizer.encode(inputs, max_length=manifest.max_length)
        parts = (encodings[at : at + AT_ONCE] for at in range(0, len(encodings), AT_ONCE))
        rows = chain.from_iterable(predict(logits, part) for part in parts)
        for item, row in zip(inputs, rows, strict=True):
            values = row.double()
            form = Reads.SINGLE if isinstance(item, str) else Reads.PAIR
            if manifest.reads not in {None, form}:
                yield _failed(f"the teacher reads texts of the form {manifest.reads}, got {form}")
            elif kind is TaskKind.REGRESSION:
                yield {repr(values.item()): 1.0}
            else:
                is_single = kind is TaskKind.SINGLE_LABEL
                shares = values.softmax(0) if is_single else values.sigmoid()
                yield dict(zip(head.labels, map(float, shares), strict=True))

    labels = (VALUE_NAME,) if kind is TaskKind.REGRESSION else head.labels
    return Teacher(
        name=manifest.reference,
        digest=manifest.content,
        kind=kind,
        labels=labels,
        ask=answers,
        thresholds=head.thresholds,
    )


class _Call(Call[Reply]):
    def answer(self, reply: Reply) -> Reply:
        return reply  # of any status


class _Upstream(Client):
    def content(self, url: str, body: object) -> bytes | str:
        """The reply to a call, or why the text has none.

        Raises:
            NunatakError: no text has a reply.
        """
        call = _Call(
            method="POST",
            path=url,
            read=lambda it: it,
            content=json.dumps(body).encode(),
            deadline_s=DEADLINE_S,
            headers=CALL_HEADERS,
        )
        try:
            reply = self._run(call)
        except UnusableReplyError as error:
            return f"the reply cannot be used: {error}"
        except NunatakClientError as error:
            if isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout):
                raise
            problem = type(error.__cause__ or error).__name__
            return f"no usable reply within {DEADLINE_S:g} s ({problem})"
        if reply.status == HTTPStatus.OK:
            return reply.content
        words = visible(reply.content[:SHOWN_BYTES].decode(errors="replace"))
        told = f"HTTP {reply.status} {words}".rstrip()
        if reply.status in OF_A_TEXT:
            return told
        raise _failed(f"{url} does not answer: {told}")

    def _read(self, response: httpx.Response, attempts: Attempts) -> Reply:
        body = ReplyBody(response.headers)
        for part in response.iter_bytes():
            attempts.check_time(response)
            body.take(part)
        return Reply(status=response.status_code, headers=response.headers, content=bytes(body))


def _upstream_teacher(
    upstream: _Upstream, url: str, protocol: UpstreamProtocol, card: QuestionCard, model: str
) -> Teacher:
    labels = tuple(card.names[it] for it in card.question.outcomes)
    said = protocol.say(card.question)
    if said is None:
        raise invalid_option(f"the protocol of {protocol.name} cannot say the question")

    def answer(text: TextInput) -> Shares | NunatakError:
        if not isinstance(text, str):
            return _failed("a question is about one text, and the row has a pair")
        found = upstream.content(url, protocol.body(model, text, [said]))
        if isinstance(found, str):
            return _failed(found)
        try:
            (shares,) = read_reply(protocol, found, [card.question])
        except UnusableReplyError as error:
            return _failed(f"the reply cannot be used: {error}")
        if shares is None:
            return _failed("the question is refused")
        return dict(zip(labels, shares, strict=True))

    def answers(inputs: Sequence[TextInput]) -> Iterator[Shares | NunatakError]:
        """Ask about each input; the first alone, because what fails all inputs fails there."""
        with upstream, ThreadPoolExecutor(CALLS) as pool:
            yield from map(answer, inputs[:1])
            yield from pool.map(answer, inputs[1:])

    return Teacher(
        name=url,
        digest=card.question.digest,
        kind=TaskKind.SINGLE_LABEL,
        labels=labels,
        ask=answers,
    )


def _place(address: str) -> tuple[str, UpstreamProtocol]:
    url = server_url(address)
    if url.path in {"", "/"}:
        url = url.copy_with(path=next(iter(PROTOCOLS)))
    found = next((it for end, it in PROTOCOLS.items() if url.path.endswith(end)), None)
    if found is None:
        raise invalid_option(f"an upstream must end in {' or '.join(PROTOCOLS)}, got {url.path}")
    return str(url), found


def _key_in(path: Path | None) -> str:
    # Empty and not None, which would send our own key to the upstream.
    if path is None:
        return ""
    try:
        key = path.read_text("utf-8").strip()
        if key_headers(key):
            return key
        problem = "it is empty"
    except (OSError, ValueError) as error:
        problem = str(error)
    except NunatakError:
        problem = "it has more than one word of printable ASCII"
    raise invalid_option(f"the key of the upstream in {path} cannot be read: {problem}")


def _failed(problem: str) -> NunatakError:
    return NunatakError("teacher_failed", problem=problem)
