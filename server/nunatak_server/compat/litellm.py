"""LiteLLM's generic guardrail API: a policy judges the texts of a call to a language model.

Each policy has its own base URL. A user of LiteLLM can set other fields of the request, so no field
chooses the policy.
"""

from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field, JsonValue

from nunatak_contract.enums import VerdictAction
from nunatak_contract.requests import MAX_ITEMS, Message
from nunatak_server.access.keys import Scope
from nunatak_server.compat.guards import CallContent, judge_call
from nunatak_server.compat.translation import LINE_PROBLEMS, GuardRoute, Problem, explained
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

Listed = Annotated[list[JsonValue], Field(max_length=MAX_ITEMS, fail_fast=True)]
Texts = Annotated[list[str], Field(max_length=MAX_ITEMS, fail_fast=True)]
Fields = dict[str, JsonValue]


class LiteLLMRequest(Message):
    """A request of LiteLLM's generic guardrail; fields about the call change nothing."""

    input_type: Literal["request", "response"]
    texts: Texts | None = None
    images: Listed | None = None
    tools: Listed | None = None
    tool_calls: Listed | None = None
    structured_messages: Listed | None = Field(
        None, description="the call's messages; the texts that are not in `texts` are judged too"
    )
    additional_provider_specific_params: Annotated[Fields, Field(max_length=0)] | None = Field(
        None, description="must be empty, because a user of LiteLLM can set it"
    )
    request_data: Fields | None = None
    request_headers: Fields | None = None
    litellm_call_id: str | None = None
    litellm_trace_id: str | None = None
    litellm_version: str | None = None
    model: str | None = None


class LiteLLMResponse(Message):
    """What LiteLLM does with a request or response; `texts` replace the sent texts."""

    action: Literal["NONE", "BLOCKED", "GUARDRAIL_INTERVENED"]
    blocked_reason: str | None
    texts: list[str] | None


class LiteLLMRoute(GuardRoute):
    """A route that blocks each call that it cannot judge.

    LiteLLM's settings may let a call pass on an error. So only those failures are errors that no
    call can cause.
    """

    errors = frozenset(
        {
            HTTPStatus.UNAUTHORIZED,
            HTTPStatus.FORBIDDEN,
            HTTPStatus.NOT_FOUND,
            HTTPStatus.TOO_MANY_REQUESTS,
            HTTPStatus.SERVICE_UNAVAILABLE,
            HTTPStatus.GATEWAY_TIMEOUT,
        }
    )

    @classmethod
    def refusal(cls, problem: Problem) -> dict[str, Any]:
        """Return a problem as the reason of a block."""
        return _answer("BLOCKED", reason=explained(problem))


router = APIRouter(route_class=LiteLLMRoute, tags=["LiteLLM"], responses=LINE_PROBLEMS)


@router.post(
    "/v1/verdicts/{policy}/beta/litellm_basic_guardrail_api",
    dependencies=[needs(Scope.PREDICT)],
    response_model=LiteLLMResponse,
)
async def litellm(
    request: Request,
    policy: str,
    body: LiteLLMRequest,
    deadline_ms: DeadlineHeader = None,
    priority: PriorityHeader = Priority.NORMAL,
    routing_key: RoutingKeyHeader = None,
) -> Response:
    """Judge the texts of a request or response for LiteLLM's `generic_guardrail_api`."""
    handling = RequestOptions(deadline_ms=deadline_ms, priority=priority, routing_key=routing_key)
    content, texts = CallContent(), body.texts or []
    for text in texts:
        content.read(text)
    content.read(
        {
            "messages": body.structured_messages,
            "images": body.images,
            "tools": body.tools,
            "tool_calls": body.tool_calls,
        }
    )
    judgement, masks = await judge_call(
        request, policy, content, handling, replaceable=frozenset(texts)
    )
    match judgement.action:
        case VerdictAction.BLOCK:
            fields = _answer("BLOCKED", reason=reason_of(judgement))
        case VerdictAction.MASK:
            fields = _answer("GUARDRAIL_INTERVENED", texts=[masks.get(it, it) for it in texts])
        case VerdictAction.FLAG | VerdictAction.ALLOW:
            fields = _answer("NONE")
    return reply(fields, headers=timing_headers(judgement.timings))


def _answer(
    action: str, *, reason: str | None = None, texts: list[str] | None = None
) -> dict[str, Any]:
    return {"action": action, "blocked_reason": reason, "texts": texts}
