"""Verdicts over HTTP, with real tasks: policies decide what the answers of their tasks say."""

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from doubles.access import add_key
from doubles.backbones import tiny_backbone
from doubles.compat import native, post
from doubles.policies import make_policy, make_rule, when
from doubles.serving import make_settings, running_client
from doubles.tasks import publish_tiny_task
from nunatak_contract.enums import HeadKind, OnFailure, PolicyMode, VerdictAction
from nunatak_contract.policies import Policy
from nunatak_contract.wire import PolicyListing, PolicyVerdict
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.access.keys import Scope

TEXT = "ann met \U0001f600 bob in oslo."
GUARD = "/v1/verdicts/guard"


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny_backbone()


@pytest.fixture
def registry(tmp_path: Path, backbone: Backbone) -> Generator[Registry]:
    with Registry.open(tmp_path) as opened:
        publish_tiny_task(opened, backbone, task="tone", labels=("calm", "urgent"))
        publish_tiny_task(
            opened,
            backbone,
            task="names",
            labels=("O", "B-X", "I-X"),
            kind=HeadKind.TOKEN_CLASSIFICATION,
        )
        yield opened


def urgent(threshold: float | None, **changes: Any) -> Policy:  # noqa: ANN401 - fields of a policy
    rule = make_rule(when("tone", "urgent", threshold=threshold), message="too urgent")
    return make_policy(rule, **changes)


async def judged(client: httpx.AsyncClient, inputs: object = TEXT) -> PolicyVerdict:
    return PolicyVerdict.model_validate(await post(client, GUARD, {"inputs": inputs}))


async def urgency(client: httpx.AsyncClient) -> float:
    outputs = await native(client, "tone", TEXT)
    return next(it["score"] for it in outputs if it["label"] == "urgent")


def damage(folder: Path, digest: str) -> None:
    for file in folder.rglob(f"*{digest}*"):
        file.unlink()


async def until_version(client: httpx.AsyncClient, version: int) -> PolicyVerdict:
    async with asyncio.timeout(30):
        while True:
            found = await judged(client)
            if found.version == version:
                return found


async def test_a_new_version_reaches_the_server_and_decides_by_the_tasks_scores(
    backbone: Backbone, registry: Registry
) -> None:
    async with running_client(backbone, registry) as client:
        score = await urgency(client)
        registry.policies.put(urgent(score - 1e-6))
        blocked = await judged(client)
        registry.policies.put(urgent(score + 1e-6))
        allowed = await until_version(client, 2)

        assert (blocked.action, blocked.decided, blocked.by_failure) == ("block", "block", False)
        assert (blocked.message, blocked.tasks, blocked.failures) == ("too urgent", ("tone/1",), ())
        (applied,) = blocked.rules
        assert (applied.rule, applied.input) == ("first", 0)
        assert applied.score == pytest.approx(score, abs=1e-6)
        assert (allowed.action, allowed.rules, allowed.texts) == ("allow", (), None)


async def test_a_mask_replaces_whole_words_by_their_label_and_counts_code_points(
    backbone: Backbone, registry: Registry
) -> None:
    rule = make_rule(when("names", "X"), action=VerdictAction.MASK)
    registry.policies.put(make_policy(rule))
    async with running_client(backbone, registry) as client:
        spans = await native(client, "names", TEXT, aggregation_strategy="first")
        found = await judged(client, [TEXT, TEXT])

    expected = TEXT
    for it in reversed(spans):
        expected = expected[: it["start"]] + "[X]" + expected[it["end"] :]
    assert spans, "the tiny task finds something in the text"
    assert (found.action, found.texts) == ("mask", (expected, expected))


async def test_a_task_that_cannot_load_blocks_or_allows_by_the_policy(
    backbone: Backbone, registry: Registry, tmp_path: Path
) -> None:
    (blob,) = registry.resolve("tone").blobs
    damage(tmp_path, blob.sha256)
    async with running_client(backbone, registry) as client:
        for number, on_failure in enumerate(OnFailure, start=1):
            registry.policies.put(urgent(1e-9, on_failure=on_failure))
            found = await until_version(client, number)

            assert (found.action.value, found.by_failure) == (on_failure.value, True)
            (failure,) = found.failures
            assert (failure.reference, failure.error.code) == ("tone", "corrupt_blob")


async def test_a_promoted_version_without_the_label_is_a_failure(
    backbone: Backbone, registry: Registry
) -> None:
    registry.policies.put(urgent(1e-9))
    publish_tiny_task(registry, backbone, task="tone", labels=("calm", "late"), seed=3)
    async with running_client(backbone, registry) as client:
        found = await judged(client)

    assert (found.action, found.by_failure) == ("block", True)
    assert [it.error.code for it in found.failures] == ["rule_unanswerable"]
    assert "no label 'urgent'; its labels: calm, late" in found.failures[0].error.detail


async def test_a_dry_run_allows_and_is_counted(backbone: Backbone, registry: Registry) -> None:
    registry.policies.put(urgent(1e-9, mode=PolicyMode.DRY_RUN))
    async with running_client(backbone, registry) as client:
        found = await judged(client)
        metrics = (await client.get("/metrics")).text

    assert (found.action, found.decided, found.mode) == ("allow", "block", "dry_run")
    line = 'nunatak_verdicts_total{action="block",by="rules",mode="dry_run",policy="guard"} 1.0'
    assert line in metrics


async def test_a_policy_with_a_task_of_others_does_not_exist_for_a_key(
    backbone: Backbone, registry: Registry, tmp_path: Path
) -> None:
    rules = [
        make_rule(when(it, "urgent" if it == "tone" else "X"), name=it) for it in ("tone", "names")
    ]
    registry.policies.put(make_policy(*rules))
    keys = tmp_path / "keys.json"
    limited = add_key(keys, "limited", tasks=("tone",))
    whole = add_key(keys, "whole", scopes=(Scope.PREDICT, Scope.READ))
    async with running_client(backbone, registry, make_settings(api_keys_file=keys)) as client:
        body = {"inputs": TEXT}
        hidden = await client.post(GUARD, json=body, headers=limited)
        absent = await client.post("/v1/verdicts/nobody", json=body, headers=limited)
        seen = await client.post(GUARD, json=body, headers=whole)
        lists = [await client.get("/v1/policies", headers=it) for it in (limited, whole)]

    assert (hidden.status_code, absent.status_code, seen.status_code) == (404, 404, 200)
    fields = hidden.json() | {"request_id": None}
    assert fields == absent.json() | {"request_id": None, "detail": fields["detail"]}
    assert fields["detail"] == absent.json()["detail"].replace("nobody", "guard")
    listings = [PolicyListing.model_validate(it.json()).policies for it in lists]
    assert [[it.policy.name for it in found] for found in listings] == [[], ["guard"]]


async def test_a_text_that_no_task_reads_is_refused_without_a_verdict(
    backbone: Backbone, registry: Registry
) -> None:
    registry.policies.put(urgent(0.5))
    async with running_client(backbone, registry) as client:
        refused = await post(client, GUARD, {"inputs": [TEXT, " "]}, status=422)

    assert refused["code"] == "empty_text"
