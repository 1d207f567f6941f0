"""What the protocols of typed questions share: questions are read, bounded and asked."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from fastapi import Request
from pydantic import ValidationError

from nunatak_contract.errors import NunatakError
from nunatak_contract.questions import JsonText, TypedQuestion, text_of
from nunatak_server.decisions.answers import AskedQuestion
from nunatak_server.decisions.decider import Decisions
from nunatak_server.http.endpoints import runtime_of
from nunatak_server.http.replies import read_headers, timing_headers
from nunatak_server.predict.types import Handling

MAX_QUESTIONS: Final = 400
MAX_OPTIONS_ON_LOOP: Final = 64
"""Most options and questions of a request that the event loop reads, in about a millisecond."""
NAMES: Final = ("nunatak", "jev-latest")
"""The names of the model that answers questions; clients of System One send the second one."""

Sent: TypeAlias = Iterable[tuple[str | None, Mapping[str, object]]]
"""The name and the fields of each question."""


async def ask(
    request: Request,
    handling: Handling,
    sent: Callable[[], Sent],
    *,
    num_options: int,
    text: str,
    model: str,
    is_whole: bool = False,
) -> Decisions:
    """Answer questions about a text. `is_whole`: ask nothing if a question is refused anyway.

    `num_options` counts options and levels of all questions. The model is one of `NAMES`, or the
    backbone that answers unknown questions.
    """
    runtime = runtime_of(request)
    limit = runtime.settings.max_documents
    if num_options > limit:
        raise NunatakError(
            "too_many_inputs", count=num_options, limit=limit, of="options and levels"
        )
    backbone = runtime.backbone if model in NAMES else runtime.backbones.named(model)
    if num_options <= MAX_OPTIONS_ON_LOOP:
        asked = _read(sent())
    else:
        asked = await asyncio.to_thread(lambda: _read(sent()))
    return await runtime.decider.decide(
        asked, text, handling=handling, backbone=backbone, is_whole=is_whole
    )


def headers_of(decisions: Decisions) -> dict[str, str]:
    """Return the timings, and how much of the text was read."""
    read = read_headers(decisions.num_tokens, is_cut=decisions.is_cut)
    return {**timing_headers(decisions.timings), **read}


def read_text(value: JsonText) -> str:
    """Return a state as text."""
    try:
        return text_of(value)
    except ValueError as error:
        raise invalid(str(error)) from error


def invalid(problem: str) -> NunatakError:
    return NunatakError("invalid_request", problem=problem)


def _read(sent: Sent) -> list[AskedQuestion]:
    return [_question(position, *it) for position, it in enumerate(sent, start=1)]


def _question(position: int, name: str | None, fields: Mapping[str, object]) -> AskedQuestion:
    """Return a question of a request, by its position from 1."""
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
