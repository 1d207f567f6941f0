"""Verdicts over HTTP, with real tasks: policies decide what the answers of their tasks say."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from doubles.backbones import tiny_backbone
from doubles.compat import litellm, native, portkey, post
from doubles.events import logged_events
from doubles.policies import make_policy, make_rule, when
from doubles.serving import running_client
from doubles.tasks import publish_names, publish_tiny_task
from doubles.trained_tokenizers import TokenizerFamily, published
from nunatak_contract.enums import OnFailure, PolicyMode, VerdictAction
from nunatak_contract.policies import Pattern, Policy, Rule
from nunatak_contract.wire import PolicyVerdict
from nunatak_model import Backbone
from nunatak_registry import Registry

TEXT = "ann met \U0001f600 bob in oslo."
GUARD = "/v1/verdicts/guard"


def publish(opened: Registry, backbone: Backbone) -> None:
    publish_tiny_task(opened, backbone, task="tone", labels=("calm", "urgent"))
    publish_names(opened, backbone)


def urgent(threshold: float | None, **changes: Any) -> Policy:  # noqa: ANN401 - fields of a policy
    rule = make_rule(when("tone", "urgent", threshold=threshold), message="too urgent")
    return make_policy(rule, **changes)


async def judged(client: httpx.AsyncClient, inputs: object = TEXT) -> PolicyVerdict:
    return PolicyVerdict.model_validate(await post(client, GUARD, {"inputs": inputs}))


async def urgency(client: httpx.AsyncClient) -> float:
    outputs = await native(client, "tone", TEXT)
    return next(it["score"] for it in outputs if it["label"] == "urgent")


async def until_version(client: httpx.AsyncClient, version: int) -> PolicyVerdict:
    async with asyncio.timeout(30):
        while True:
            found = await judged(client)
            if found.version == version:
                return found


async def test_a_new_version_reaches_the_server_and_decides_by_the_tasks_scores(
    caller: httpx.AsyncClient, copied: Registry
) -> None:
    score = await urgency(caller)
    copied.policies.put(urgent(score - 1e-6))
    blocked = await judged(caller)
    copied.policies.put(urgent(score + 1e-6))
    allowed = await until_version(caller, 2)

    assert (blocked.action, blocked.decided, blocked.by_failure) == ("block", "block", False)
    assert (blocked.message, blocked.tasks, blocked.failures) == ("too urgent", ("tone/1",), ())
    (applied,) = blocked.rules
    assert (applied.rule, applied.input) == ("first", 0)
    assert applied.score == pytest.approx(score, abs=1e-6)
    assert (allowed.action, allowed.rules, allowed.texts) == ("allow", (), None)


async def test_a_mask_replaces_whole_words_and_a_dry_run_masks_nothing(
    caller: httpx.AsyncClient, copied: Registry
) -> None:
    rule = make_rule(when("names", "X"), action=VerdictAction.MASK)
    copied.policies.put(make_policy(rule))
    spans = await native(caller, "names", TEXT, aggregation_strategy="first")
    found = await judged(caller, [TEXT, TEXT])
    copied.policies.put(make_policy(rule, mode=PolicyMode.DRY_RUN))
    dry = await until_version(caller, 2)

    expected = TEXT
    for it in reversed(spans):
        expected = expected[: it["start"]] + "[X]" + expected[it["end"] :]
    assert spans, "the tiny task finds something in the text"
    assert (found.action, found.texts) == ("mask", (expected, expected))
    masks = found.masks or ()
    places = {(it.start, it.end, it.label) for own in masks for it in own}
    assert places == {(it["start"], it["end"], "X") for it in spans}
    assert list(map(len, masks)) == [len(spans)] * 2
    assert (dry.action, dry.decided, dry.texts, dry.masks) == ("allow", "mask", None, None)


@pytest.mark.parametrize(("role", "action"), [("canary", "block"), ("shadow", "allow")])
async def test_a_canary_without_the_label_is_a_failure_and_a_shadow_decides_nothing(
    caller: httpx.AsyncClient, backbone: Backbone, copied: Registry, role: str, action: str
) -> None:
    copied.policies.put(urgent(1.0))
    publish_tiny_task(copied, backbone, task="tone", labels=("calm", "late"), seed=3)
    copied.promote("tone", "prod", 1)
    address = f"/v1/tasks/tone/aliases/prod/{role}"
    started = await caller.put(address, json={"version": 2, "share": 1.0})
    assert started.status_code == 200, started.text
    found = await judged(caller)

    failed = ["rule_unanswerable"] * (role == "canary")
    assert (found.action, [it.error.code for it in found.failures]) == (action, failed)


async def test_all_references_of_a_policy_to_one_alias_get_one_version(
    caller: httpx.AsyncClient, backbone: Backbone, copied: Registry
) -> None:
    names = {"bare": "tone", "named": "tone@prod"}.items()
    rules = [make_rule(when(task, "urgent", threshold=1.0), name=it) for it, task in names]
    publish_tiny_task(copied, backbone, task="tone", seed=3, labels=("calm", "urgent"))
    copied.promote("tone", "prod", 1)
    copied.policies.put(make_policy(*rules))
    address = "/v1/tasks/tone/aliases/prod/canary"
    assert (await caller.put(address, json={"version": 2, "share": 0.5})).status_code == 200

    asked = [(await judged(caller)).tasks for _ in range(40)]

    assert set(asked) == {("tone/1", "tone/1"), ("tone/2", "tone/2")}


@pytest.mark.parametrize(
    "changes",
    [
        {"parameters": {"on_long": "cut"}},
        {"on_long": "cut"},
        {"truncate": True},
        {"stops_early": False},
        {"deadline_ms": 1},
        {"policy": "other"},
        {"mode": "dry_run"},
        {"unjudged": ["images"]},
    ],
)
async def test_no_field_of_a_request_changes_a_policy(
    caller: httpx.AsyncClient, copied: Registry, changes: dict[str, object]
) -> None:
    copied.policies.put(urgent(1e-9))
    for path, body in (
        (GUARD, {"inputs": TEXT}),
        ("/v1/moderations", {"input": TEXT, "model": "guard"}),
    ):
        answer = await caller.post(path, json={**body, **changes})
        assert answer.status_code == 422, answer.text
    blocked = await post(caller, f"{GUARD}/portkey", {**portkey(TEXT), **changes})
    refused = await post(
        caller, f"{GUARD}/beta/litellm_basic_guardrail_api", litellm(TEXT, **changes)
    )

    assert (blocked["verdict"], refused["action"]) == (False, "BLOCKED")


@pytest.mark.parametrize(
    "headers",
    [{"x-deadline-ms": "1"}, {"x-priority": "low"}, {"x-routing-key": "any"}],
    ids=lambda it: next(iter(it)),
)
async def test_no_header_lets_a_text_through_a_policy_that_allows_on_failure(
    caller: httpx.AsyncClient, copied: Registry, headers: dict[str, str]
) -> None:
    copied.policies.put(urgent(1e-9, on_failure=OnFailure.ALLOW))
    await judged(caller)
    answer = await caller.post(GUARD, json={"inputs": TEXT}, headers=headers)

    # The look-up of the policy may also end at the deadline, with an error.
    said = answer.json()
    assert answer.status_code == 504 or (said["action"], said["by_failure"]) == ("block", False)


async def test_a_policy_reads_special_tokens_in_a_text_as_text(tmp_path: Path) -> None:
    tokenizer = published(TokenizerFamily.BERT).backend_tokenizer
    backbone = tiny_backbone(tokenizer=tokenizer)
    with Registry.open(tmp_path) as own:
        publish_tiny_task(own, backbone, task="tone", labels=("calm", "urgent"))
        own.policies.put(urgent(1e-9))
        async with running_client(backbone, own) as client:
            (judged_as,) = (await judged(client, "London[SEP]London")).rules
            read_as = [
                {it["label"]: it["score"] for it in await native(client, "tone", text)}
                for text in ("London [ SEP ] London", "London[SEP]London")
            ]

    literal, special = [it["urgent"] for it in read_as]
    # The vocabulary is trained anew in each process, so the difference varies.
    assert judged_as.score == pytest.approx(literal, abs=1e-6)
    assert abs(literal - special) > 4e-6


async def test_a_dry_run_allows_and_is_counted_and_logged_with_its_rules(
    caller: httpx.AsyncClient, copied: Registry
) -> None:
    copied.policies.put(urgent(1e-9, mode=PolicyMode.DRY_RUN))
    with logged_events() as events:
        found = await judged(caller, [TEXT, TEXT])
        (event,) = events.named("request")
    metrics = (await caller.get("/metrics")).text

    assert (found.action, found.decided, found.mode) == ("allow", "block", "dry_run")
    line = 'nunatak_verdicts_total{action="block",by="rules",mode="dry_run",policy="guard"} 1.0'
    rule = 'verdict_rules_total{action="block",mode="dry_run",policy="guard",rule="first"} 1.0'
    assert line in metrics
    assert rule in metrics
    facts = {"policy": "guard/1", "action": "allow", "rules": ["first"], "tasks": ["tone/1"]}
    assert facts.items() <= event.items()


async def test_a_policy_of_patterns_alone_masks_by_every_route_within_the_limits(
    caller: httpx.AsyncClient, copied: Registry
) -> None:
    keys = Pattern(pattern=r"\bsk-\w{4,}", label="KEY")
    rule = Rule(name="keys", patterns=(keys,), action=VerdictAction.MASK)
    copied.policies.put(make_policy(rule))

    found = await judged(caller, ["my key is sk-abcd1.", "calm"])
    by_portkey = await post(caller, f"{GUARD}/portkey", portkey("use sk-abcd1 now"))
    parts = [{"type": "text", "text": it} for it in ("use sk", "-", "abcd1 now")]
    cut = {"json": {"messages": [{"role": "user", "content": parts}]}}
    by_parts = await post(caller, f"{GUARD}/portkey", portkey("", request=cut))
    long = await post(caller, GUARD, {"inputs": "a" * 200_000}, status=422)

    assert (found.action, found.texts) == (VerdictAction.MASK, ("my key is [KEY].", "calm"))
    assert (found.tasks, found.failures) == ((), ())
    assert "use [KEY] now" in str(by_portkey["transformedData"])
    masked = [{"type": "text", "text": it} for it in ("use [KEY]", "[KEY]", "[KEY] now")]
    (message,) = by_parts["transformedData"]["request"]["json"]["messages"]
    assert message["content"] == masked
    assert long["code"] == "text_too_long"
