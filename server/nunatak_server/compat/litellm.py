"""LiteLLM's generic guardrail API: a policy judges the texts of a call to a language model.

Each policy has its own base URL. A user of LiteLLM can set other fields of the request, so no field
chooses the policy.
"""

from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field, JsonValue

from nunatak_contract.enums import PolicyMode, UnjudgedPart, VerdictAction
from nunatak_contract.errors import NunatakError
from nunatak_contract.requests import MAX_ITEMS, Message
from nunatak_server.access.keys import Scope
from nunatak_server.compat.translation import (
    LINE_PROBLEMS,
    LineRoute,
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
from nunatak_server.verdicts.judge import Judgement, reason_of

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
        None, description="no effect: the texts of the messages are in `texts`"
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


router = APIRouter(route_class=LineRoute, tags=["LiteLLM"], responses=LINE_PROBLEMS)


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
    texts = body.texts or []
    judgement = await judge_texts(request, policy, texts, handling)
    _refuse_unjudged(judgement, body)
    match judgement.action:
        case VerdictAction.BLOCK:
            fields = {"action": "BLOCKED", "blocked_reason": reason_of(judgement), "texts": None}
        case VerdictAction.MASK:
            masked = masked_texts(judgement, texts)
            fields = {"action": "GUARDRAIL_INTERVENED", "blocked_reason": None, "texts": masked}
        case VerdictAction.FLAG | VerdictAction.ALLOW:
            fields = {"action": "NONE", "blocked_reason": None, "texts": None}
    return reply(fields, headers=timing_headers(judgement.timings))


def _refuse_unjudged(judgement: Judgement, body: LiteLLMRequest) -> None:
    """Refuse parts of a call that no task reads, unless the policy lets them pass.

    Raises:
        NunatakError: `invalid_request`, the call has such a part.
    """
    policy = judgement.published.policy
    if policy.mode is PolicyMode.DRY_RUN or judgement.action is VerdictAction.BLOCK:
        return
    sent = (it for it in UnjudgedPart if getattr(body, it.value, None))
    found = next((it for it in sent if it not in policy.unjudged), None)
    if found is not None:
        raise NunatakError(
            "invalid_request",
            problem=f"no task reads {found.value}; name {found.value!r} in `unjudged` of the "
            "policy to let them pass",
        )
