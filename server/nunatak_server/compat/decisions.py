"""OpenAI's `POST /v1/decisions`, and the parts that it shares with System One.

The shapes are those of openai 3.57. A question without an answer is a refusal, with its reason in
`x_reason`. An answer says in `x_source` where it came from.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import Request, Response
from pydantic import Discriminator, Field, JsonValue, StrictBool, StrictStr, Tag, ValidationError

from nunatak_contract.errors import NunatakError
from nunatak_contract.questions import JsonText, Question, text_of
from nunatak_contract.requests import MAX_ITEMS, Message, Text, field_names
from nunatak_server.compat.failures import router_of
from nunatak_server.decisions.answers import QuestionAnswer
from nunatak_server.decisions.decider import Decisions
from nunatak_server.http.endpoints import Routed, runtime_of
from nunatak_server.http.replies import read_headers, reply, timing_headers
from nunatak_server.predict.types import Handling

MAX_QUESTIONS: Final = 400
NAMES: Final = ("nunatak", "jev-latest")
"""The names of the model that answers questions; clients of System One send the second one."""


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
Content = str | Annotated[list[Part], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)]


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
    names = [it.name for it in body.questions if it.name is not None]
    if len(set(names)) != len(names):
        raise _invalid("questions must have different names")
    questions = [
        read_question(
            position,
            {
                "type": it.type,
                "instructions": _content(it.instructions),
                "options": [option.model_dump() for option in it.choices or ()],
                "levels": [level.model_dump() for level in it.levels or ()],
            },
        )
        for position, it in enumerate(body.questions, start=1)
    ]
    found = await ask(
        request, handling, questions, text=_conversation(body.input), model=body.model
    )
    answers = [
        {"name": asked.name, **_answer(answer)}
        for asked, answer in zip(body.questions, found.answers, strict=True)
    ]
    usage = {
        "input_tokens": found.num_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": found.num_tokens,
    }
    fields = {"model": NAMES[0], "answers": answers, "usage": usage}
    return reply(fields, headers=headers_of(found))


def headers_of(decisions: Decisions) -> dict[str, str]:
    """Return the timings, and how much of the text was read."""
    read = read_headers(decisions.num_tokens, is_cut=decisions.is_cut)
    return {**timing_headers(decisions.timings), **read}


async def ask(
    request: Request,
    handling: Handling,
    questions: Sequence[Question],
    *,
    text: str,
    model: str,
    is_whole: bool = False,
) -> Decisions:
    """Answer questions about a text. `is_whole`: ask nothing if a question is refused anyway.

    The model is one of `NAMES`, or the backbone that answers unknown questions.
    """
    runtime = runtime_of(request)
    backbone = runtime.backbone if model in NAMES else runtime.backbones.named(model)
    return await runtime.decider.decide(
        questions, text, handling=handling, backbone=backbone, is_whole=is_whole
    )


def read_question(position: int, fields: Mapping[str, object]) -> Question:
    """Return a question of a request, by its position from 1."""
    try:
        return Question.model_validate(fields)
    except ValidationError as error:
        # A place may be the caller's text, so only the message is repeated.
        problem = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise _invalid(f"question {position}: {problem}") from None


def read_text(value: JsonText) -> str:
    """Return a state as text."""
    try:
        return text_of(value)
    except ValueError as error:
        raise _invalid(str(error)) from error


def _invalid(problem: str) -> NunatakError:
    return NunatakError("invalid_request", problem=problem)


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
    return read_text(part.data if isinstance(part.data, dict) else [*part.data])


def _answer(answer: QuestionAnswer | NunatakError) -> dict[str, Any]:
    if isinstance(answer, NunatakError):
        reason = {"code": answer.code, "message": str(answer)}
        return {"type": "refusal", "x_source": None, "x_reason": reason}
    question, shares = answer.question, answer.probabilities
    match question.type:
        case "predicate":
            fields = {"type": "predicate", "probability": shares[1]}
        case "choice":
            pairs = zip(question.outcomes, shares, strict=True)
            fields = {
                "type": "choice",
                "choice": answer.best,
                "probabilities": [{"value": it, "probability": share} for it, share in pairs],
                "confidence": answer.confidence,
            }
        case "score":
            labels = [text_of(it.label) for it in question.levels]
            fields = {
                "type": "score",
                "score": answer.expectation,
                "probabilities": [
                    {"value": place, "label": label, "probability": share}
                    for place, (label, share) in enumerate(zip(labels, shares, strict=True))
                ],
                "confidence": answer.confidence,
            }
    return {**fields, "x_source": answer.source}
