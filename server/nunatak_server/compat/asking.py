"""What the protocols of typed questions share: questions are read, bounded and asked."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fastapi import Request
from pydantic import ValidationError

from nunatak_contract.errors import NunatakError
from nunatak_contract.questions import JsonText, TypedQuestion, text_of
from nunatak_contract.record import problems_of
from nunatak_server.decisions.answers import AskedQuestion, Decisions
from nunatak_server.errors import invalid_request
from nunatak_server.http.endpoints import runtime_of
from nunatak_server.http.replies import read_headers, timing_headers
from nunatak_server.predict.types import Handling

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
    """Return the timings, and how much of the text was read."""
    read = read_headers(decisions.num_tokens, is_cut=decisions.is_cut)
    return {**timing_headers(decisions.timings), **read}


def read_text(value: JsonText) -> str:
    try:
        return text_of(value)
    except ValueError as error:
        raise invalid_request(str(error)) from error


def _question(position: int, name: str | None, fields: Mapping[str, object]) -> AskedQuestion:
    named = "" if name is None else f" ({name!r:.80})"
    title = f"question {position} of the request{named}"
    try:
        question = TypedQuestion.model_validate(fields)
    except ValidationError as error:
        # A place may be the caller's text, so only the message is repeated.
        raise invalid_request(f"{title}: {problems_of(error)[0][1]}") from None
    # Computed here, because this may be a thread.
    assert question.digest  # noqa: S101
    return AskedQuestion(question=question, title=title)
