"""OpenAI's `POST /v1/decisions`: typed questions about a text or a conversation.

The shapes are those of the package `openai`; docs/questions.md names its release. A question
without an answer is a refusal, with its reason in `x_reason`. An answer says in `x_source` where it
came from.
"""

from typing import Annotated, Any, Literal

from fastapi import Request, Response
from pydantic import Discriminator, Field, JsonValue, StrictBool, StrictStr, Tag

from nunatak_contract.errors import NunatakError
from nunatak_contract.questions import text_of
from nunatak_contract.requests import MAX_ITEMS, Message, Some, Text, field_names
from nunatak_server.compat.asking import (
    MAX_QUESTIONS,
    NAMES,
    SentQuestions,
    ask,
    headers_of,
    read_text,
)
from nunatak_server.compat.failures import router_of
from nunatak_server.decisions.answers import QuestionAnswer
from nunatak_server.errors import invalid_request
from nunatak_server.http.endpoints import Routed
from nunatak_server.http.replies import reply


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
    sent = SentQuestions(
        num_questions=len(names),
        num_options=sum(len(it.choices or ()) + len(it.levels or ()) for it in body.questions),
        fields=lambda: zip(names, map(fields_of, body.questions), strict=True),
    )
    found = await ask(request, handling, sent, text=_conversation(body.input), model=body.model)
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
