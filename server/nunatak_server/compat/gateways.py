"""Guardrails of gateways: a policy judges the texts of a call to a language model.

Each policy has its own base URL. A user of LiteLLM can set other fields of its request, so no field
chooses the policy.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import Header, Request, Response
from pydantic import Field, JsonValue

from nunatak_contract.enums import PolicyMode, VerdictAction
from nunatak_contract.names import TaskName
from nunatak_contract.requests import MAX_ITEMS, Message
from nunatak_server.compat.translation import router_of
from nunatak_server.errors import invalid_request
from nunatak_server.http.endpoints import Routed, runtime_of
from nunatak_server.http.replies import reply, timing_headers
from nunatak_server.verdicts.calls import CallContent, judge_call
from nunatak_server.verdicts.judge import Judgement, reason_of
from nunatak_server.verdicts.rules import TextDecision

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


for_litellm = router_of("LiteLLM")


@for_litellm.ask("/v1/verdicts/{policy}/beta/litellm_basic_guardrail_api", answer=LiteLLMResponse)
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
    # LiteLLM puts masked texts back only where it has found the texts.
    replaceable = {it for it, number in Counter(texts).items() if content.texts[it] <= number}
    if not content.texts.keys() >= {it for it in texts if it.strip()}:
        # Without a role, the texts count as texts of one author.
        content.read(list(texts))
    runtime = runtime_of(request)
    judgement, masks = await judge_call(
        *(runtime.judge, runtime.settings, policy, content, handling), replaceable=replaceable
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


for_portkey = router_of("Portkey")


@for_portkey.ask(
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
    runtime = runtime_of(request)
    judgement, masks = await judge_call(
        runtime.judge, runtime.settings, policy, content, handling, replaceable=replaceable
    )
    fields: dict[str, Any] = {
        "verdict": judgement.action is not VerdictAction.BLOCK,
        "data": {"action": judgement.action, "reason": reason_of(judgement)},
    }
    if judgement.action is VerdictAction.MASK:
        fields["transformedData"] = {name: {"json": CallContent(changes=masks).read(side.json_)}}
    return reply(fields, headers=timing_headers(judgement.timings))


def _stands_in(text: JsonValue, content: CallContent) -> bool:
    if not isinstance(text, str):
        return False
    lines = _lines(text)
    joined = ("\n".join(it) for it in content.sequences)
    return any(lines == _lines(it) for it in (*content.texts, *joined))


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


class DetectorParams(Message):
    """Parameters of a detector; a user of the orchestrator can set them."""

    threshold: float | None = Field(None, description="no effect, because each score is 1")


class ContentsRequest(Message):
    """Texts to judge one by one."""

    contents: Texts
    detector_params: DetectorParams = DetectorParams(threshold=None)


class ChatRequest(Message):
    """The messages and tools of a call, to judge as a whole."""

    messages: Listed
    tools: Listed | None = None
    detector_params: DetectorParams = DetectorParams(threshold=None)


class Detection(Message):
    """What a rule has found."""

    detection_type: VerdictAction = Field(description="the action of the rule")
    detection: str = Field(
        description="what a mask writes, or else the rule; `on_failure` has none"
    )
    score: Literal[1] = Field(1, description="1, because the policy has applied its thresholds")
    metadata: dict[str, JsonValue]


class TextDetection(Detection):
    """What a rule has found, with its place in the text, in characters."""

    start: int
    end: int
    text: str


DetectorId = Annotated[TaskName, Header(description="the name of a policy")]

for_orchestrator = router_of("FMS Guardrails Orchestrator")


@for_orchestrator.ask("/api/v1/text/contents", answer=list[list[TextDetection]])
async def detect_in_contents(
    request: Request, handling: Routed, detector_id: DetectorId, body: ContentsRequest
) -> Response:
    """Judge each text, and return what the rules of the policy have found in it."""
    asked = tuple(it for it in body.contents if it.strip())
    judge = runtime_of(request).judge
    published, left = await judge.find(detector_id, handling)
    judgement = await judge.ask(published, asked, left, is_call=True, stops_early=False)
    judge.observe(judgement)
    decisions = dict(zip(asked, judgement.decisions, strict=True))
    found = [
        [
            {**fields, "start": start, "end": end, "text": text[start:end]}
            for start, end, fields in _detections(judgement, decisions[text], text)
        ]
        if text in decisions
        else []
        for text in body.contents
    ]
    return reply(found, headers=timing_headers(judgement.timings))


@for_orchestrator.ask("/api/v1/text/chat", answer=list[Detection])
async def detect_in_chat(
    request: Request, handling: Routed, detector_id: DetectorId, body: ChatRequest
) -> Response:
    """Judge the texts of a call, and return what the rules of the policy have found."""
    content = CallContent()
    content.read({"messages": body.messages, "tools": body.tools})
    runtime = runtime_of(request)
    judgement, _ = await judge_call(
        *(runtime.judge, runtime.settings, detector_id, content, handling),
        replaceable=content.texts,
    )
    found = (fields for it in judgement.decisions for *_, fields in _detections(judgement, it, ""))
    once = {(it["detection_type"], it["detection"]): it for it in found}
    return reply([*once.values()], headers=timing_headers(judgement.timings))


def _detections(
    judgement: Judgement, decision: TextDecision, text: str
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Return each part that a rule has found, with its place; the whole text without a part."""
    policy = judgement.published
    if policy.document.mode is PolicyMode.DRY_RUN:
        return
    if decision.is_by_failure and decision.action is VerdictAction.BLOCK:
        told = {"policy": policy.reference, "reason": reason_of(judgement)}
        yield 0, len(text), _detection(decision.action, "on_failure", told)
    for state in decision.applied:
        rule = state.rule
        told = {"policy": policy.reference, "rule": rule.name, "score": state.score}
        spans = [(it.start, it.end, it.label) for it in state.spans]
        for start, end, label in spans or [(0, len(text), rule.name)]:
            yield start, end, _detection(rule.action, label, told)


def _detection(action: VerdictAction, name: str, told: dict[str, Any]) -> dict[str, Any]:
    return {"detection_type": action, "detection": name, "score": 1, "metadata": told}
