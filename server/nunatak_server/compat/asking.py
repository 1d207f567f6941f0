"""Shared parts of the translators: common fields, calls, forms, and typed questions."""

import asyncio
import struct
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Request
from pydantic import Field, ValidationError, WithJsonSchema

from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_contract.questions import JsonText, TypedQuestion, text_of
from nunatak_contract.requests import MAX_ITEMS, Text
from nunatak_model import Backbone
from nunatak_server.decisions.answers import AskedQuestion, Decisions
from nunatak_server.http.endpoints import catalog_of, reference_text, runtime_of
from nunatak_server.http.pages import WHOLE_REFERENCE
from nunatak_server.http.replies import read_headers, timing_headers
from nunatak_server.outputs.entities import Entity
from nunatak_server.predict.types import EmbeddingRequest, Embeddings, Handling

Texts = Annotated[list[Text], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)]
ModelName = Annotated[str, WithJsonSchema(WHOLE_REFERENCE)]
"""The field that names a task: `name`, `name@alias` or `name/3`."""


async def find_task(request: Request, task: str, version: str | None) -> TaskManifest:
    reference = TaskReference.parse(reference_text(task, version))
    manifest = await catalog_of(request).resolve(reference)
    runtime_of(request).backbones.of(manifest)
    return manifest


async def embed_texts(
    request: Request,
    handling: Handling,
    texts: tuple[str, ...],
    *,
    truncates: bool = False,
    normalises: bool = True,
    backbone: Backbone | None = None,
) -> tuple[Embeddings, dict[str, str]]:
    """Embed texts with a backbone, or else the default backbone."""
    runtime = runtime_of(request)
    embeddings = await runtime.service.embed(
        EmbeddingRequest(
            inputs=texts,
            truncates=truncates,
            normalises=normalises,
            handling=handling,
            backbone=(backbone or runtime.backbone).digest,
        )
    )
    read = read_headers(embeddings.num_tokens, is_cut=embeddings.is_cut)
    return embeddings, {**timing_headers(embeddings.timings), **read}


def texts_of(texts: str | list[str]) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else tuple(texts)


def usage_of(num_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


def span_of(entity: Entity, text: str) -> dict[str, Any]:
    start, end = entity["start"], entity["end"]
    label = entity["entity_group"] if "entity_group" in entity else entity["entity"]
    return {"label": label, "start": start, "end": end, "text": text[start:end]}


def base64_of(vector: list[float]) -> str:
    """Return a vector as base64 of little-endian float32."""
    return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


MAX_QUESTIONS: Final = 400
MAX_ON_LOOP: Final = 128
"""Most questions, options and levels of a request that the event loop reads, in a millisecond."""
NAMES: Final = ("nunatak", "jev-latest")
"""The names of the model that answers questions; clients of System One send the second one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentQuestions:
    num_questions: int
    num_options: int
    """Options and levels of all questions."""
    fields: Callable[[], Iterable[tuple[str | None, Mapping[str, object]]]]
    """Returns the name and the fields of each question."""

    def read(self) -> list[AskedQuestion]:
        return [_question(position, *it) for position, it in enumerate(self.fields(), start=1)]


async def ask(
    request: Request,
    handling: Handling,
    sent: SentQuestions,
    *,
    text: str,
    model: str,
    is_whole: bool = False,
) -> Decisions:
    """Answer questions about a text. `is_whole`: ask nothing if a question is refused anyway.

    The model is one of `NAMES`, or the backbone that answers unknown questions.
    """
    runtime = runtime_of(request)
    limit = runtime.settings.max_documents
    if sent.num_options > limit:
        raise NunatakError(
            "too_many_inputs", count=sent.num_options, limit=limit, of="options and levels"
        )
    backbone = runtime.backbone if model in NAMES else runtime.backbones.named(model)
    is_short = sent.num_questions + sent.num_options <= MAX_ON_LOOP
    asked = sent.read() if is_short else await asyncio.to_thread(sent.read)
    return await runtime.decider.decide(
        asked, text, handling=handling, backbone=backbone, is_whole=is_whole
    )


def headers_of(decisions: Decisions) -> dict[str, str]:
    read = read_headers(decisions.num_tokens, is_cut=decisions.is_cut)
    return {**timing_headers(decisions.timings), **read}


def read_text(value: JsonText) -> str:
    try:
        return text_of(value)
    except ValueError as error:
        raise invalid(str(error)) from error


def invalid(problem: str) -> NunatakError:
    return NunatakError("invalid_request", problem=problem)


def _question(position: int, name: str | None, fields: Mapping[str, object]) -> AskedQuestion:
    named = "" if name is None else f" ({name!r:.80})"
    title = f"question {position} of the request{named}"
    try:
        question = TypedQuestion.model_validate(fields)
    except ValidationError as error:
        # A place may be the caller's text, so only the message is repeated.
        problem = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise invalid(f"{title}: {problem}") from None
    # Computed here, because this may be a thread.
    assert question.digest  # noqa: S101
    return AskedQuestion(question=question, title=title)
