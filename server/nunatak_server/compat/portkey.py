"""Portkey's webhook guardrail: a policy judges the texts of a call to a language model."""

from typing import Any, Literal

from fastapi import Request, Response
from pydantic import Field, JsonValue

from nunatak_contract.enums import VerdictAction
from nunatak_contract.requests import Message
from nunatak_server.compat.failures import router_of
from nunatak_server.compat.guards import CallContent, judge_call
from nunatak_server.errors import invalid_request
from nunatak_server.http.endpoints import Routed
from nunatak_server.http.replies import reply, timing_headers
from nunatak_server.verdicts.judge import reason_of


class PortkeyContent(Message, extra="ignore"):
    """One side of a call to a language model.

    The language model reads `json`. Portkey makes `text` from the last message.
    """

    json_: JsonValue = Field(None, alias="json")
    text: JsonValue = None


class PortkeyRequest(Message, extra="ignore"):
    """A request of Portkey's webhook, which may have more fields."""

    eventType: Literal["beforeRequestHook", "afterRequestHook"]  # noqa: N815 - Portkey's name
    request: PortkeyContent
    response: PortkeyContent | None = None


class PortkeyResponse(Message):
    """Whether the call may go on, and the changed side of the call."""

    verdict: bool
    data: dict[str, JsonValue]
    transformedData: dict[str, JsonValue] | None = None  # noqa: N815 - Portkey's name


router = router_of("Portkey")


@router.ask(
    "/v1/verdicts/{policy}/portkey", answer=PortkeyResponse, response_model_exclude_none=True
)
async def portkey(
    request: Request, handling: Routed, policy: str, body: PortkeyRequest
) -> Response:
    """Judge every text of a request or response for Portkey's webhook guardrail."""
    name = "request" if body.eventType == "beforeRequestHook" else "response"
    side = body.request if name == "request" else body.response
    if side is None or not (side.json_ or side.text):
        raise invalid_request(f"{body.eventType} needs {name}.json")
    content = CallContent()
    content.read(side.json_)
    replaceable = frozenset(content.texts)
    if not _stands_in(side.text, content):
        content.read(side.text)
    judgement, masks = await judge_call(request, policy, content, handling, replaceable=replaceable)
    fields: dict[str, Any] = {
        "verdict": judgement.action is not VerdictAction.BLOCK,
        "data": {"action": judgement.action, "reason": reason_of(judgement)},
    }
    if judgement.action is VerdictAction.MASK:
        fields["transformedData"] = {name: {"json": CallContent(changes=masks).read(side.json_)}}
    return reply(fields, headers=timing_headers(judgement.timings))


def _stands_in(text: JsonValue, content: CallContent) -> bool:
    """Return whether a text stands in the content of a call."""
    if not isinstance(text, str):
        return False
    lines = _lines(text)
    joined = ("\n".join(it) for it in content.sequences)
    return any(lines == _lines(it) for it in (*content.texts, *joined))


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]
