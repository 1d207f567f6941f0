"""LiteLLM's generic guardrail API: a policy judges the texts of a call to a language model.

Each policy has its own base URL. A user of LiteLLM can set other fields of the request, so no field
chooses the policy.
"""

from typing import Annotated, Any, Literal

from fastapi import Request, Response
from pydantic import Field, JsonValue

from nunatak_contract.enums import VerdictAction
from nunatak_contract.requests import MAX_ITEMS, Message
from nunatak_server.compat.failures import router_of
from nunatak_server.compat.guards import CallContent, judge_call
from nunatak_server.http.endpoints import Routed
from nunatak_server.http.replies import reply, timing_headers
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


router = router_of("LiteLLM")


@router.ask("/v1/verdicts/{policy}/beta/litellm_basic_guardrail_api", answer=LiteLLMResponse)
async def litellm(
    request: Request, handling: Routed, policy: str, body: LiteLLMRequest
) -> Response:
    """Judge the texts of a request or response for LiteLLM's `generic_guardrail_api`."""
    content, texts = CallContent(), body.texts or []
    content.read(
        {
            "messages": body.structured_messages,
            "images": body.images,
            "tools": body.tools,
            "tool_calls": body.tool_calls,
        }
    )
    if not content.texts.keys() >= {it for it in texts if it.strip()}:
        # Without a role, the texts count as texts of one author.
        content.read(list(texts))
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
