"""System One's `POST /v1/systemone`: typed questions about a state, by their ids.

The shapes and formulas are those of jevcompat 0.1 and of typesafe-sdk 0.7. An answer says in
`x_source` where it came from.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import Request, Response
from pydantic import Field, JsonValue, StrictStr

from nunatak_contract.errors import NunatakError
from nunatak_contract.questions import JsonText
from nunatak_contract.requests import Message, Text
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
from nunatak_server.http.endpoints import Routed
from nunatak_server.http.replies import reply


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


router = router_of("System One")


@router.ask("/v1/systemone", answer=SystemOneResponse)
async def systemone(request: Request, handling: Routed, body: SystemOneRequest) -> Response:
    """Answer typed questions about a state; if one has no answer, the whole request fails."""
    sent = SentQuestions(
        num_questions=len(body.questions),
        num_options=sum(map(_num_options, body.questions.values())),
        fields=lambda: ((name, dict(it)) for name, it in body.questions.items()),
    )
    text = read_text(body.state)
    decisions = await ask(request, handling, sent, text=text, model=body.model, is_whole=True)
    answers = dict[str, Mapping[str, object]]()
    for name, answer in zip(body.questions, decisions.answers, strict=True):
        if isinstance(answer, NunatakError):
            raise answer
        answers[name] = _answer(answer)
    usage = {"input_tokens": decisions.num_tokens, "output_tokens": 0}
    fields = {"model": NAMES[0], "answers": answers, "usage": usage}
    return reply(fields, headers=headers_of(decisions))


def _num_options(asked: SystemOneQuestion) -> int:
    match asked.type, asked.criteria:
        case "choice" | "score", dict() | list() as criteria:
            return len(criteria)
        case _:
            return 0


def _answer(answer: QuestionAnswer) -> dict[str, Any]:
    question, shares = answer.question, answer.probabilities
    match question.type:
        case "predicate":
            fields = {"type": "noul", "noul": shares[1]}
        case "choice":
            fields = {
                "type": "choice",
                "choice": answer.best,
                "probabilities": dict(zip(question.outcomes, shares, strict=True)),
                "confidence": answer.confidence,
            }
        case "score":
            places = list(map(str, question.outcomes))
            fields = {
                "type": "score",
                "score": answer.expectation,
                "legend": dict(zip(places, (it.label for it in question.levels), strict=True)),
                "probabilities": dict(zip(places, shares, strict=True)),
                "confidence": answer.confidence,
            }
    return {**fields, "x_source": answer.source}
