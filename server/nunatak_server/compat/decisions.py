"""The protocols of typed questions: OpenAI's decisions, and System One.

An answer says in `x_source` where it came from. docs/questions.md names the releases of the clients
whose shapes these are.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

from fastapi import Request, Response
from pydantic import Discriminator, Field, JsonValue, StrictBool, StrictStr, Tag, ValidationError

from nunatak_contract.errors import NunatakError
from nunatak_contract.questions import JsonText, TypedQuestion, text_of
from nunatak_contract.record import problems_of
from nunatak_contract.requests import MAX_ITEMS, Message, Some, Text, field_names
from nunatak_server.compat.translation import router_of
from nunatak_server.decisions.answers import AskedQuestion, Decisions, QuestionAnswer
from nunatak_server.errors import invalid_request
from nunatak_server.http.endpoints import Routed, runtime_of
from nunatak_server.http.replies import read_headers, reply, timing_headers
from nunatak_server.predict.types import Handling

MAX_QUESTIONS: Final = 400
MAX_ON_LOOP: Final = 128
"""Most questions, options and levels of a request that the event loop reads, in a millisecond."""
NAMES: Final = ("nunatak", "jev-latest")
"""The names of the model that answers questions; clients of System One send the second one."""


async def _ask(
    request: Request,
    handling: Handling,
    body: "DecisionsRequest | SystemOneRequest",
    fields: Iterable[tuple[str | None, Mapping[str, object]]],
    *,
    text: str,
    num_options: int,
    is_whole: bool = False,
) -> Decisions:
    """Answer the questions of a request about a text.

    `fields` are the name and the fields of each question. `num_options` are the options and levels
    of all. The model of the request is one of `NAMES`, or the backbone that answers unknown
    questions. `is_whole`: nothing is asked if a question is refused anyway.
    """

    def read() -> list[AskedQuestion]:
        return [_question(position, *it) for position, it in enumerate(fields, start=1)]

    runtime, model = runtime_of(request), body.model
    limit = runtime.settings.max_documents
    if num_options > limit:
        raise NunatakError(
            "too_many_inputs", count=num_options, limit=limit, of="options and levels"
        )
    backbone = runtime.backbone if model in NAMES else runtime.backbones.named(model)
    is_short = len(body.questions) + num_options <= MAX_ON_LOOP
    asked = read() if is_short else await asyncio.to_thread(read)
    return await runtime.decider.decide(
        asked, text, handling=handling, backbone=backbone, is_whole=is_whole
    )


def _reply(found: Decisions, answers: object, usage: object) -> Response:
    fields = {"model": NAMES[0], "answers": answers, "usage": usage}
    read = read_headers(found.num_tokens, is_cut=found.is_cut)
    return reply(fields, headers={**timing_headers(found.timings), **read})


def _text(value: JsonText) -> str:
    try:
        return text_of(value)
    except ValueError as error:
        raise invalid_request(str(error)) from error


def _fields(answer: QuestionAnswer, value: object, **more: object) -> dict[str, Any]:
    """Return the fields of a choice or a score, which the protocols name alike."""
    kind, sure = answer.question.type, answer.confidence
    return {"type": kind, kind: value, **more, "confidence": sure, "x_source": answer.source}


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


class TextPart(Message):
    """A part that is a text."""

    type: Literal["input_text", "output_text"]
    text: str


class JsonPart(Message):
    """A part that is JSON."""

    type: Literal["input_json"]
    data: dict[str, JsonValue] | list[dict[str, JsonValue]]


def _type_of(value: object) -> str:
    return "json" if "data" in field_names(value) else "text"


Part = Annotated[
    Annotated[TextPart, Tag("text")] | Annotated[JsonPart, Tag("json")], Discriminator(_type_of)
]
Content = str | Some[Part]


class InputMessage(Message):
    """A message of a conversation. Images and calls of tools are refused: no task reads them."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class Choice(Message):
    """An option of a choice."""

    value: StrictBool | StrictStr
    description: str | None = None


class ScoreLevel(Message):
    """A level of a score."""

    label: str
    description: str | None = None


class DecisionQuestion(Message):
    """A question: a predicate, a choice or a score."""

    type: Literal["predicate", "choice", "score"]
    name: Annotated[str, Field(min_length=1)] | None = None
    instructions: Content
    choices: Annotated[list[Choice], Field(max_length=MAX_ITEMS, fail_fast=True)] | None = None
    levels: Annotated[list[ScoreLevel], Field(max_length=MAX_ITEMS, fail_fast=True)] | None = None


class DecisionsRequest(Message):
    """An input, and questions about it."""

    model: str
    input: Text | Annotated[list[InputMessage], Field(min_length=1, max_length=MAX_ITEMS)]
    questions: Annotated[
        list[DecisionQuestion], Field(min_length=1, max_length=MAX_QUESTIONS, fail_fast=True)
    ]
    prompt_cache_key: str | None = Field(None, description="no effect")
    prompt_cache_options: JsonValue = Field(None, description="no effect")
    safety_identifier: str | None = Field(None, description="no effect")


class DecisionsResponse(Message):
    """An answer or a refusal for each question, in order."""

    model: str
    answers: list[dict[str, JsonValue]]
    usage: dict[str, JsonValue]


router = router_of("OpenAI")


@router.ask("/v1/decisions", answer=DecisionsResponse)
async def decisions(request: Request, handling: Routed, body: DecisionsRequest) -> Response:
    """Answer typed questions about a text or a conversation; each is answered or refused."""
    names = [it.name for it in body.questions]
    given = [it for it in names if it is not None]
    if len(set(given)) != len(given):
        raise invalid_request("questions must have different names")
    found = await _ask(
        request,
        handling,
        body,
        zip(names, map(fields_of, body.questions), strict=True),
        text=_conversation(body.input),
        num_options=sum(len(it.choices or ()) + len(it.levels or ()) for it in body.questions),
    )
    answers = [
        {"name": asked.name, **_as_openai(answer)}
        for asked, answer in zip(body.questions, found.answers, strict=True)
    ]
    usage = {
        "input_tokens": found.num_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": found.num_tokens,
    }
    return _reply(found, answers, usage)


def fields_of(asked: DecisionQuestion) -> dict[str, object]:
    return {
        "type": asked.type,
        "instructions": _content(asked.instructions),
        "options": [it.model_dump() for it in asked.choices or ()],
        "levels": [it.model_dump() for it in asked.levels or ()],
    }


def _conversation(value: str | list[InputMessage]) -> str:
    """Return an input as one text: a message of a user alone as it is, else one line each."""
    match value:
        case str():
            return value
        case [InputMessage(role="user", content=content)]:
            return _content(content)
        case _:
            return "\n".join(f"{it.role}: {_content(it.content)}" for it in value)


def _content(content: Content) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(it.text if isinstance(it, TextPart) else _json(it) for it in content)


def _json(part: JsonPart) -> str:
    return _text(part.data if isinstance(part.data, dict) else [*part.data])


def _as_openai(answer: QuestionAnswer | NunatakError) -> dict[str, Any]:
    if isinstance(answer, NunatakError):
        reason = {"code": answer.code, "message": str(answer)}
        return {"type": "refusal", "x_source": None, "x_reason": reason}
    question, shares = answer.question, answer.probabilities
    match question.type:
        case "predicate":
            return {"type": "predicate", "probability": shares[1], "x_source": answer.source}
        case "choice":
            pairs = zip(question.outcomes, shares, strict=True)
            found = [{"value": it, "probability": share} for it, share in pairs]
            return _fields(answer, answer.best, probabilities=found)
        case "score":
            labels = [text_of(it.label) for it in question.levels]
            found = [
                {"value": place, "label": label, "probability": share}
                for place, (label, share) in enumerate(zip(labels, shares, strict=True))
            ]
            return _fields(answer, answer.expectation, probabilities=found)


class SystemOneQuestion(Message):
    """A question: yes or no (`noul`), a choice or a score."""

    type: Literal["noul", "choice", "score"]
    instructions: JsonText | None = None
    criteria: JsonValue = Field(
        None,
        description="noul: `true`, `false` or both; choice: 2 to 255 options, each with a text or "
        "null; score: a list of 2 to 10 levels, lowest first",
    )


class SystemOneRequest(Message, extra="ignore"):
    """A state, and questions by their ids. Other fields have no effect, as in System One."""

    model: str
    state: Text | dict[str, JsonValue] | list[JsonValue]
    questions: Annotated[
        dict[Annotated[StrictStr, Field(min_length=1)], SystemOneQuestion],
        Field(min_length=1, max_length=MAX_QUESTIONS),
    ]
    assets: None = Field(None, description="must be absent, because no task reads images")


class SystemOneUsage(Message):
    """The number of tokens read; an answer has none."""

    input_tokens: int
    output_tokens: int


class SystemOneResponse(Message):
    """An answer for each question, by its id."""

    model: str
    answers: dict[str, dict[str, JsonValue]]
    usage: SystemOneUsage


system_one = router_of("System One")


@system_one.ask("/v1/systemone", answer=SystemOneResponse)
async def systemone(request: Request, handling: Routed, body: SystemOneRequest) -> Response:
    """Answer typed questions about a state; if one has no answer, the whole request fails."""
    found = await _ask(
        request,
        handling,
        body,
        ((name, dict(it)) for name, it in body.questions.items()),
        text=_text(body.state),
        num_options=sum(map(_num_options, body.questions.values())),
        is_whole=True,
    )
    answers = dict[str, Mapping[str, object]]()
    for name, answer in zip(body.questions, found.answers, strict=True):
        if isinstance(answer, NunatakError):
            raise answer
        answers[name] = _as_system_one(answer)
    return _reply(found, answers, {"input_tokens": found.num_tokens, "output_tokens": 0})


def _num_options(asked: SystemOneQuestion) -> int:
    match asked.type, asked.criteria:
        case "choice" | "score", dict() | list() as criteria:
            return len(criteria)
        case _:
            return 0


def _as_system_one(answer: QuestionAnswer) -> dict[str, Any]:
    question, shares = answer.question, answer.probabilities
    match question.type:
        case "predicate":
            return {"type": "noul", "noul": shares[1], "x_source": answer.source}
        case "choice":
            found = dict(zip(question.outcomes, shares, strict=True))
            return _fields(answer, answer.best, probabilities=found)
        case "score":
            places = list(map(str, question.outcomes))
            legend = dict(zip(places, (it.label for it in question.levels), strict=True))
            found = dict(zip(places, shares, strict=True))
            return _fields(answer, answer.expectation, legend=legend, probabilities=found)
