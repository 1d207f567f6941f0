"""Portkey's webhook guardrail: a policy judges the text of a call to a language model."""

from collections.abc import Mapping
from typing import Any, Literal

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict, Field, JsonValue

from nunatak_contract.enums import VerdictAction
from nunatak_contract.errors import NunatakError
from nunatak_contract.requests import Message
from nunatak_server.access.keys import Scope
from nunatak_server.compat.translation import (
    Problem,
    TranslatedRoute,
    explained,
    judge_texts,
    masked_texts,
)
from nunatak_server.http.access import needs
from nunatak_server.http.endpoints import (
    DeadlineHeader,
    PriorityHeader,
    RequestOptions,
    RoutingKeyHeader,
)
from nunatak_server.http.replies import reply, timing_headers
from nunatak_server.scheduler.rows import Priority
from nunatak_server.verdicts.judge import reason_of


class PortkeyContent(Message):
    """One side of a call to a language model."""

    model_config = ConfigDict(extra="ignore")

    json_: JsonValue = Field(None, alias="json")
    text: str | None = None


class PortkeyRequest(Message):
    """A request of Portkey's webhook, which may have more fields."""

    model_config = ConfigDict(extra="ignore")

    eventType: Literal["beforeRequestHook", "afterRequestHook"]  # noqa: N815 - Portkey's name
    request: PortkeyContent
    response: PortkeyContent | None = None


class PortkeyResponse(Message):
    """Whether the call may go on, and the changed side of the call."""

    verdict: bool
    data: dict[str, JsonValue]
    transformedData: dict[str, JsonValue] | None = None  # noqa: N815 - Portkey's name


class PortkeyRoute(TranslatedRoute):
    """A route whose failures are verdicts.

    Portkey lets a call go on if its webhook fails. So every failure is the verdict `false`, with
    the status of a success.
    """

    @classmethod
    def shape(cls, problem: Problem) -> dict[str, Any]:
        """Return a problem as the verdict `false`."""
        return {"verdict": False, "data": {"reason": explained(problem), "code": problem["code"]}}

    def _shaped(self, problem: Problem, *, headers: Mapping[str, str]) -> Response:
        return Response(
            orjson.dumps(self.shape(problem)), media_type="application/json", headers=dict(headers)
        )


router = APIRouter(route_class=PortkeyRoute, tags=["Portkey"])


@router.post(
    "/v1/verdicts/{policy}/portkey",
    dependencies=[needs(Scope.PREDICT)],
    response_model=PortkeyResponse,
    response_model_exclude_none=True,
)
async def portkey(
    request: Request,
    policy: str,
    body: PortkeyRequest,
    deadline_ms: DeadlineHeader = None,
    priority: PriorityHeader = Priority.NORMAL,
    routing_key: RoutingKeyHeader = None,
) -> Response:
    """Judge the text of a request or response for Portkey's webhook guardrail."""
    handling = RequestOptions(deadline_ms=deadline_ms, priority=priority, routing_key=routing_key)
    is_request = body.eventType == "beforeRequestHook"
    side = body.request if is_request else body.response
    if side is None or side.text is None:
        name = "request" if is_request else "response"
        raise NunatakError("invalid_request", problem=f"{body.eventType} needs {name}.text")
    judgement = await judge_texts(request, policy, [side.text], handling)
    fields: dict[str, Any] = {
        "verdict": judgement.action is not VerdictAction.BLOCK,
        "data": {"action": judgement.action, "reason": reason_of(judgement)},
    }
    if judgement.action is VerdictAction.MASK:
        (masked,) = masked_texts(judgement, [side.text])
        changed = _changed(side.json_, side.text, masked)
        fields["transformedData"] = {"request" if is_request else "response": {"json": changed}}
    return reply(fields, headers=timing_headers(judgement.timings))


def _changed(value: JsonValue, text: str, masked: str) -> JsonValue:
    """Return the content of a call with a text masked.

    Raises:
        NunatakError: `invalid_request`, the text stands nowhere in the content.
    """
    try:
        changed, count = _replaced(value, text, masked)
    except RecursionError:
        count, changed = 0, None
    if not count:
        raise NunatakError(
            "invalid_request", problem="the text to mask must be a string in the json of the call"
        )
    return changed


def _replaced(value: JsonValue, text: str, masked: str) -> tuple[JsonValue, int]:
    """Replace every string that equals a text; also return the number of replacements."""
    match value:
        case str() if value == text:
            return masked, 1
        case list():
            items = [_replaced(it, text, masked) for it in value]
            return [it for it, _ in items], sum(count for _, count in items)
        case dict():
            fields = {name: _replaced(it, text, masked) for name, it in value.items()}
            changed = {name: it for name, (it, _) in fields.items()}
            return changed, sum(count for _, count in fields.values())
        case _:
            return value, 0
