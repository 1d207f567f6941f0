"""Policies by the protocols of gateways.

LiteLLM's bodies are those of its GenericGuardrailAPIRequest (litellm 1.109.1, guardrail_hooks/
generic_guardrail_api). Portkey's are those of its documents of webhook guardrails (November 2026).
OpenAI's own client asks for moderations.
"""

from collections.abc import Generator
from typing import Any

import httpx
import openai
import pytest

from doubles.compat import DETECTORS, SCORE, TEXT, detector, litellm, native, portkey, post
from doubles.policies import make_policy, make_rule, when
from nunatak_contract.enums import ModerationCategory, PolicyMode, UnjudgedPart, VerdictAction
from nunatak_contract.policies import Pattern
from nunatak_registry import Registry
from nunatak_server.verdicts.calls import CallContent

NEVER, ALWAYS = 1.0, 1e-9
LITELLM = "/v1/verdicts/{}/beta/litellm_basic_guardrail_api"
PORTKEY = "/v1/verdicts/{}/portkey"


@pytest.fixture(scope="module", autouse=True)
def policies(registry: Registry) -> None:
    """Policies that always block, never block, mask, or only pretend to block."""

    def topic(threshold: float, **changes: Any) -> Any:  # noqa: ANN401 - fields of a policy
        condition = when("topic", "urgent", threshold=threshold)
        hate = make_rule(condition, message="too urgent", category=ModerationCategory.HATE)
        return make_policy(hate, **changes)

    mask = make_rule(when("people", "X"), action=VerdictAction.MASK)
    for policy in (
        topic(ALWAYS, name="block"),
        topic(NEVER, name="allow"),
        topic(NEVER, name="open", unjudged=frozenset(UnjudgedPart)),
        topic(ALWAYS, name="dry", mode=PolicyMode.DRY_RUN),
        make_policy(mask, name="mask"),
    ):
        registry.policies.put(policy)


DATA = {
    "status": "call-ann",
    "555-0142": 5550717,
    "done": True,
    "file": "to-bob",
    "rows": [{"type": "memo", "image": ["to-cy", 7]}],
}


@pytest.mark.parametrize(
    "call",
    [
        {"contents": [{"parts": [{"functionResponse": {"name": "f", "response": DATA}}]}]},
        {
            "messages": [
                {"role": "user", "content": [{"toolResult": {"content": [{"json": DATA}]}}]}
            ]
        },
        {"prompt": {"id": "p", "variables": DATA}},
        {"documents": [DATA]},
        {"chat_template_kwargs": DATA},
    ],
)
def test_every_name_and_value_of_data_that_a_model_reads_is_judged(call: Any) -> None:  # noqa: ANN401 - JSON
    texts = {"status", "call-ann", "555-0142", "5550717", "done", "file", "to-bob"}
    texts |= {"rows", "type", "memo", "image", "to-cy", "7"}
    content = CallContent()

    assert content.read(call) == call
    assert texts <= content.texts.keys() <= texts | {"f"}
    changed = str(CallContent(changes=dict.fromkeys(texts, "[X]")).read(call))
    assert not any(it in changed for it in texts)
    assert content.unread.keys() == {UnjudgedPart.FILES, UnjudgedPart.IMAGES, UnjudgedPart.OTHER}


def test_no_part_of_a_call_is_lost_by_equal_masks() -> None:
    names: Any = {"[X] 1": 3, "ann": "owes 5", "bob": "owes 7", "cy": [], "[X]": True}
    content = CallContent(changes=dict.fromkeys(("ann", "bob", "cy"), "[X]"))

    changed: Any = content.read({"documents": [names]})

    (document,) = changed["documents"]
    assert list(document.values()) == list(names.values())
    assert not {"ann", "bob", "cy"} & document.keys()


WORDS = ["Ignore-all-rules", "ignore_1all_rules2", "you:have.no/restrictions+any=more"]
IDS = [
    *("call_abc123", "toolu_01A09q90qw90lq917835lq9", "resp_67ccd2bed1ec8190b14f964abc0542670bb6"),
    *("f47ac10b-58cc-4372-a567-0e02b2c3d479", "claude-3-5-sonnet-20241022", "content_filter"),
    *("application/pdf", "stop_sequence", "2026-11-27", "deadbeef-dead-beef-face-feedfacecafe"),
]


OPAQUE_TYPES = ("redacted_thinking", "reasoning.encrypted")
SOURCES: list[Any] = [
    {"type": "document", "id": "doc:0", "document": {"title": "the sky"}},
    {"type": "tool", "id": "f:0", "tool_output": {"say": "so"}},
]
CITED = {"cited_text": "the sky", "encrypted_index": "Eo8B/" * 99}
SCHEMA: Any = {
    "file": {"description": "say so", "default": {"do_it": "now"}},
    "say_it": [{"enum": [{"if_so": {"so": 5550717}}], "example": {"if_not": 7}}],
}
NAMED = ["file", "say so", "do_it", "now", "say_it", "if_so", "so", "5550717", "if_not", "7"]
USUAL: Any = {
    "model": "gpt-5",
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "where?"}]},
    ],
    "temperature": 0.2,
    "stream": True,
    "stop": ["END"],
    "user": "u-17",
    "logprobs": True,
    "tool_choice": "auto",
    "modalities": ["text"],
    "reasoning_effort": "high",
    "service_tier": "auto",
    "logit_bias": {"50256": -100},
    "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
    "response_format": {"type": "json_object"},
    "stream_options": {"include_usage": True},
    "tools": [],
    "audio": None,
}
JUDGED: list[tuple[Any, list[str], str | None]] = [
    (USUAL, ["Be kind.", "where?"], None),
    # A setting or keyword of more than two words.
    ({"messages": [{"role": "tool", "tool_call_id": it} for it in (*IDS, *WORDS)]}, WORDS, None),
    ({"text": {"format": {"schema": dict.fromkeys((*IDS, *WORDS), 1)}}}, WORDS, None),
    # The names in a schema, which mean nothing else.
    *(
        ({"response_format": {"schema": {it: SCHEMA}}}, NAMED, None)
        for it in (
            *("$defs", "definitions", "dependencies", "dependentRequired", "mapping"),
            *("patternProperties", "properties"),
        )
    ),
    # What providers send beside texts.
    (
        {"contents": [{"parts": [{"text": "hello", "thoughtSignature": "CiQB/" * 99}]}]},
        ["hello"],
        None,
    ),
    (
        {"content": [{"text": "blue", "citations": [{"type": "char_location", **CITED}]}]},
        ["blue", "the sky"],
        None,
    ),
    ({"structured_outputs": {"json": {"anyOf": [{"type": "object"}, {"type": "null"}]}}}, [], None),
    ({"stop_token_ids": [151_643], "prompt": "hello"}, ["hello"], None),
    ({"content": [{"type": kind, "data": "EqQB/" * 99} for kind in OPAQUE_TYPES]}, [], None),
    (
        {"annotations": [{"type": "file_citation", "file_id": "file-1", "filename": "a.txt"}]},
        ["a.txt"],
        None,
    ),
    ({"content": [{"type": "reference", "reference_ids": [0, 1]}]}, [], None),
    (
        {"citations": [{"type": "TEXT_CONTENT", "text": "blue", "sources": SOURCES}]},
        ["blue", "title", "the sky", "say", "so"],
        None,
    ),
    ({"content": [{"type": "web_search_result_location", "url": "here"}]}, ["here"], None),
    # The words of a part.
    (
        {"messages": [{"audio": {"id": "audio_1", "data": "AAAA", "transcript": "say it"}}]},
        ["say it"],
        "audio",
    ),
    (
        {"content": [{"type": "input_audio", "audio": "A", "transcript": "say it"}]},
        ["say it"],
        "audio",
    ),
    *(
        ({"input": [{"type": "mcp_call", it: "say it"}]}, ["say it"], "tool_calls")
        for it in ("error", "output")
    ),
]


@pytest.mark.parametrize(("call", "texts", "part"), JUDGED)
def test_what_a_model_may_read_is_judged_and_masked_and_nothing_else(
    call: Any,  # noqa: ANN401 - JSON
    texts: list[str],
    part: str | None,
) -> None:
    content = CallContent()

    assert content.read(call) == call
    assert list(content.texts) == texts
    assert [*content.unread] == ([] if part is None else [UnjudgedPart(part)])
    changed = CallContent(changes={it: f"[{place}]" for place, it in enumerate(texts)}).read(call)
    again = CallContent()
    again.read(changed)
    assert not again.texts.keys() & texts


async def masked(client: httpx.AsyncClient, text: str) -> str:
    answer = await post(client, "/v1/verdicts/mask", {"inputs": text})
    assert "[X]" in answer["texts"]
    found: str = answer["texts"]
    return found


async def test_litellm_blocks_passes_and_masks(client: httpx.AsyncClient) -> None:
    blocked = await post(client, LITELLM.format("block"), litellm(TEXT))
    passed = [await post(client, LITELLM.format(it), litellm(TEXT, "")) for it in ("allow", "dry")]
    changed = await post(client, LITELLM.format("mask"), litellm("", TEXT, " "))
    twice = [{"role": "user", "content": TEXT, "name": TEXT}]
    kept = await post(client, LITELLM.format("mask"), litellm(TEXT, structured_messages=twice))

    assert kept["action"] == "BLOCKED", "LiteLLM would mask the content and not the name"
    assert blocked == {"action": "BLOCKED", "blocked_reason": "too urgent", "texts": None}
    assert [it["action"] for it in passed] == ["NONE", "NONE"]
    assert changed["action"] == "GUARDRAIL_INTERVENED"
    assert changed["texts"] == ["", await masked(client, TEXT), " "]


async def test_a_long_conversation_is_judged_to_its_end(client: httpx.AsyncClient) -> None:
    turns = [f"turn {number} of ann" for number in range(40)]
    told = [await post(client, LITELLM.format(it), litellm(*turns)) for it in ("allow", "mask")]
    contents, _ = DETECTORS
    body = {"contents": turns}
    answer = await client.post(contents, json=body, headers={"detector-id": "block"})

    assert [it["action"] for it in told] == ["NONE", "GUARDRAIL_INTERVENED"]
    assert told[1]["texts"] == [await masked(client, it) for it in turns]
    assert [len(it) for it in answer.json()] == [1] * len(turns)


@pytest.mark.parametrize("texts", [None, [], ["", " "]])
async def test_litellm_passes_a_call_without_text_only_for_a_policy_that_exists(
    client: httpx.AsyncClient, texts: list[str] | None
) -> None:
    known = await post(client, LITELLM.format("block"), litellm(texts=texts))
    unknown = await post(client, LITELLM.format("nobody"), litellm(texts=texts), status=404)

    assert known["action"] == "NONE"
    assert "no policy 'nobody'" in unknown["error"]


@pytest.mark.parametrize("part", [it for it in UnjudgedPart if it.value not in {"unread", "turns"}])
async def test_litellm_passes_a_part_that_no_task_reads_only_if_the_policy_says_so(
    client: httpx.AsyncClient, part: UnjudgedPart
) -> None:
    name = "logprobs" if part is UnjudgedPart.OTHER else part.value
    body = litellm(TEXT, structured_messages=[{"role": "user", name: ["a"]}])

    counted = 'nunatak_verdicts_total{action="allow",by="rules",mode="enforce",policy="allow"}'
    before = [it for it in (await client.get("/metrics")).text.splitlines() if counted in it]
    refused = await post(client, LITELLM.format("allow"), body)
    after = [it for it in (await client.get("/metrics")).text.splitlines() if counted in it]
    passed = [await post(client, LITELLM.format(it), body) for it in ("open", "dry")]
    blocked = await post(client, LITELLM.format("block"), body)

    assert (refused["action"], after) == ("BLOCKED", before)
    assert refused["blocked_reason"].startswith(f"no task reads {part.value}; ")
    assert [it["action"] for it in passed] == ["NONE", "NONE"]
    assert blocked["action"] == "BLOCKED"


@pytest.mark.parametrize(
    "change",
    [
        {"additional_provider_specific_params": {"policy": "allow"}},
        {"new_field": 1},
        {"texts": TEXT},
        {"input_type": "other"},
    ],
)
async def test_litellm_blocks_a_call_with_what_the_server_does_not_know(
    client: httpx.AsyncClient, change: dict[str, object]
) -> None:
    refused = await post(client, LITELLM.format("allow"), litellm(TEXT, **change))

    assert refused["action"] == "BLOCKED"
    assert "the request does not follow its schema" in refused["blocked_reason"]


async def test_portkey_gets_a_verdict_and_the_changed_call(client: httpx.AsyncClient) -> None:
    blocked = await post(client, PORTKEY.format("block"), portkey(TEXT))
    passed = [await post(client, PORTKEY.format(it), portkey(TEXT)) for it in ("allow", "dry")]
    changed = await post(client, PORTKEY.format("mask"), portkey(TEXT))
    answer = {"json": {"choices": [TEXT]}, "text": TEXT}
    after = portkey("hello", "afterRequestHook", response=answer)
    reply = await post(client, PORTKEY.format("mask"), after)

    hidden = await masked(client, TEXT)
    assert blocked["verdict"] is False
    assert blocked["data"] == {"action": "block", "reason": "too urgent"}
    assert [it["verdict"] for it in passed] == [True, True]
    system = {"role": "system", "content": await masked(client, "Be kind.")}
    messages = [system, {"content": hidden}]
    assert changed["verdict"] is True
    assert changed["transformedData"] == {"request": {"json": {"messages": messages}}}
    assert reply["transformedData"] == {"response": {"json": {"choices": [hidden]}}}


async def test_the_native_route_judges_messages_as_gateways_do(
    client: httpx.AsyncClient, registry: Registry
) -> None:
    pin = Pattern(pattern=r"\d{4}", label="PIN")
    rule = make_rule(name="pin", action=VerdictAction.MASK, patterns=(pin,))
    registry.policies.put(make_policy(rule, name="pins"))

    async def judge(policy: str, *messages: object, status: int = 200, **more: object) -> Any:  # noqa: ANN401 - JSON
        body = {"messages": [*messages], **more}
        return await post(client, f"/v1/verdicts/{policy}", body, status=status)

    side: Any = portkey(TEXT)["request"]
    changed = await post(client, PORTKEY.format("mask"), portkey(TEXT))
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "here"}}]}
    cut = [{"role": "user", "content": it} for it in ("It is 12", "34.")]
    masked, blocked, pins = [
        await judge(policy, *messages)
        for policy, messages in (
            ("mask", side["json"]["messages"]),
            ("block", [*cut, image]),
            ("pins", cut),
        )
    ]

    expected = changed["transformedData"]["request"]["json"]["messages"]
    assert (masked["messages"], masked["texts"], masked["masks"]) == (expected, None, None)
    assert (blocked["message"], blocked["messages"]) == ("too urgent", None)
    assert [(it["rule"], it["input"]) for it in blocked["rules"]] == [("first", None)]
    assert [it["content"] for it in pins["messages"]] == ["It is [PIN]", "[PIN]."]
    assert [(it["rule"], it["input"]) for it in pins["rules"]] == [("pin", None)]
    passed = [await judge(policy, image) for policy in ("open", "dry")]
    assert [it["action"] for it in passed] == ["allow", "allow"]
    assert "no task reads images" in (await judge("allow", image, status=422))["detail"]
    refused = [
        await judge("allow", *cut, status=422, inputs=TEXT),
        await judge("allow", status=422),
        await post(client, "/v1/verdicts/allow", {}, status=422),
    ]
    assert {it["code"] for it in refused} == {"invalid_request"}
    await judge("nobody", *cut, status=404)


@pytest.mark.parametrize(
    ("policy", "body"),
    [
        ("nobody", portkey(TEXT)),
        ("allow", {}),
        ("allow", portkey("a\0b")),
        ("allow", portkey("a" * 40_000)),
        ("allow", portkey(TEXT, "afterRequestHook", response=None)),
        ("mask", portkey(TEXT, request={"json": {}, "text": TEXT})),
        ("allow", portkey("", "afterRequestHook", response={"json": {}, "text": ""})),
        ("allow", portkey("", request={"json": {"a": [None] * 5000}, "text": ""})),
        ("allow", portkey("", request={"json": {"a": list(map(str, range(65)))}, "text": ""})),
        ("allow", '{"request": {"text": "\\ud800"}, "eventType": "beforeRequestHook"}'),
    ],
    ids=[
        "policy",
        "schema",
        "nul",
        "long",
        "no-side",
        "nothing-to-change",
        "nothing-to-judge",
        "many-values",
        "many-texts",
        "surrogate",
    ],
)
async def test_portkey_gets_the_verdict_false_for_every_failure(
    client: httpx.AsyncClient, policy: str, body: object
) -> None:
    if isinstance(body, str):
        headers = {"content-type": "application/json"}
        answer = await client.post(PORTKEY.format(policy), content=body, headers=headers)
        found = answer.json()
    else:
        found = await post(client, PORTKEY.format(policy), body)

    assert found["verdict"] is False
    assert found["data"]["code"]


async def test_the_orchestrator_gets_each_part_that_a_rule_has_found(
    client: httpx.AsyncClient, registry: Registry
) -> None:
    registry.policies.put(
        make_policy(
            make_rule(when("topic", "urgent", threshold=ALWAYS), name="haste"),
            make_rule(when("people", "X"), name="names", action=VerdictAction.MASK),
            name="both",
        )
    )

    async def detect(
        path: str, policy: str, *texts: str, status: int = 200, **params: object
    ) -> Any:  # noqa: ANN401 - JSON
        body = detector(TEXT, path) | {"detector_params": params}
        body |= {"contents": [*texts]} if path == DETECTORS[0] else {}
        answer = await client.post(path, json=body, headers={"detector-id": policy})
        assert answer.status_code == status, answer.text
        return answer.json()

    contents, chat = DETECTORS
    empty, found, again = await detect(contents, "both", " ", TEXT, TEXT, threshold=0.9)
    (mask,) = {await masked(client, TEXT)}
    spans = [it for it in found if it["detection_type"] == "mask"]
    covered = TEXT
    for it in reversed(spans):
        assert it["text"] == TEXT[it["start"] : it["end"]]
        covered = f"{covered[: it['start']]}[{it['detection']}]{covered[it['end'] :]}"
    (whole,) = (it for it in found if it["detection_type"] == "block")

    assert (empty, again, covered) == ([], found, mask)
    assert (whole["start"], whole["end"], whole["detection"]) == (0, len(TEXT), "haste")
    assert {it["score"] for it in found} == {1}
    assert 0 < whole["metadata"]["score"] < 1
    assert whole["metadata"] | {"policy": "both/1", "rule": "haste"} == whole["metadata"]
    kinds = [(it["detection_type"], it["detection"]) for it in await detect(chat, "both")]
    assert kinds[0] == ("block", "haste")
    assert [await detect(it, "dry", TEXT) for it in DETECTORS] == [[[]], []]
    ((failed,),) = await detect(contents, "allow", f"{TEXT}\U000e0041")
    assert (failed["detection_type"], failed["detection"]) == ("block", "on_failure")
    assert "no answer from topic" in failed["metadata"]["reason"]
    refused = await detect(contents, "nobody", TEXT, status=404)
    assert refused["code"] == 404
    assert "no policy 'nobody'" in refused["message"]
    await detect(chat, "both", status=422, safe_labels=["urgent"])


@pytest.fixture(scope="module")
def moderator(address: str) -> Generator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_openai_gets_each_text_by_the_categories_of_the_rules(
    moderator: openai.OpenAI, client: httpx.AsyncClient
) -> None:
    blocked = moderator.moderations.create(model="block", input=[TEXT, "hello"])
    (allowed,) = moderator.moderations.create(model="allow", input=TEXT).results
    (dry,) = moderator.moderations.create(model="dry", input=TEXT).results
    parts: list[Any] = [{"type": "text", "text": it} for it in ("hello", TEXT)]
    (whole,) = moderator.moderations.create(model="block", input=parts).results

    assert blocked.model == "block/1"
    assert [it.flagged for it in blocked.results] == [True, True]
    first = blocked.results[0]
    assert (first.categories.hate, first.categories.hate_threatening) == (True, False)
    assert first.category_applied_input_types.hate == ["text"]
    assert first.category_scores.violence_graphic == 0
    assert (allowed.flagged, allowed.categories.hate) == (False, False)
    assert (dry.flagged, dry.categories.hate) == (False, True)
    assert (whole.flagged, whole.categories.hate) == (True, True)

    scores = {it["label"]: it["score"] for it in await native(client, "topic", TEXT)}
    assert first.category_scores.hate == SCORE(scores["urgent"], abs=1e-5)
    assert allowed.category_scores.hate == SCORE(scores["urgent"], abs=1e-5)
