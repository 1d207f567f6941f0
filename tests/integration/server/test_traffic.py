"""Versions, canaries, shadows and streams, as callers and operators see them."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from doubles.compat import counted
from doubles.policies import make_policy, make_rule, when
from doubles.refusals import raises
from doubles.serving import make_settings, running_client
from doubles.tasks import publish_tiny_task
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.methods import TopK
from nunatak_model import Backbone
from nunatak_registry import Candidate, CandidateRole, Registry

PREDICT = "/v1/tasks/tone/predict"
PROD = "/v1/tasks/tone/aliases/prod"
CANARY, SHADOW = f"{PROD}/canary", f"{PROD}/shadow"
KEYS = [f"user-{number}" for number in range(30)]


def publish(opened: Registry, backbone: Backbone) -> None:
    for seed in (1, 2, 3):
        publish_tiny_task(opened, backbone, seed=seed)
    publish_tiny_task(opened, backbone, task="intent", seed=4)
    opened.promote("tone", "prod", 1)
    opened.promote("tone", "prod", 2)


def damage(
    folder: Path, manifest: TaskManifest, change: Callable[[bytes], bytes] | None = None
) -> None:
    """Change the bytes of a version, or take them away."""
    (file,) = folder.rglob(f"*{manifest.blobs[0].sha256}*")
    data = file.read_bytes()
    file.unlink()
    if change is not None:
        file.write_bytes(change(data))


async def served(client: httpx.AsyncClient, key: str | None = None) -> int:
    headers = {} if key is None else {"x-routing-key": key}
    answer = await client.post(PREDICT, json={"inputs": "hello"}, headers=headers)
    assert answer.status_code == 200, answer.text
    version: int = answer.json()["version"]
    assert answer.headers["x-task-version"] == f"tone/{version}"
    return version


async def report_of(client: httpx.AsyncClient, *, inputs: int) -> dict[str, Any]:
    """Return the shadow's report once it counts this many inputs."""
    async with asyncio.timeout(30):
        while True:
            report: dict[str, Any] = (await client.get("/v1/tasks/tone/shadow")).json()
            if report["compared"] + report["errors"] + report["dropped"] >= inputs:
                return report


async def test_a_canary_answers_its_share_and_each_caller_keeps_its_version(
    caller: httpx.AsyncClient,
) -> None:
    started = await caller.put(CANARY, json={"version": 3, "share": 0.3})
    assert started.json() == {
        "task": "tone",
        "alias": "prod",
        "role": "canary",
        "version": 3,
        "share": 0.3,
        "active": True,
    }
    first = {key: await served(caller, key) for key in KEYS}
    assert set(first.values()) == {2, 3}
    assert {key: await served(caller, key) for key in KEYS} == first

    await caller.put(CANARY, json={"version": 3, "share": 0.8, "expected_version": 3})
    grown = {key: await served(caller, key) for key in KEYS}
    assert {key for key in KEYS if first[key] == 3} < {key for key in KEYS if grown[key] == 3}
    shown = (await caller.get("/v1/tasks/tone")).json()["candidates"]
    assert shown == [{"alias": "prod", "role": "canary", "version": 3, "share": 0.8}]
    told = "nunatak_split_requests_total"
    for arm in ("alias", "canary"):
        line = f'{told}{{arm="{arm}",outcome="ok",task="tone"}}'
        assert await counted(caller, line) > 0

    ended = await caller.post(f"{CANARY}/end")
    assert (ended.json()["active"], ended.json()["version"]) == (False, 3)
    assert {await served(caller, key) for key in KEYS} == {2}


async def test_a_candidate_that_cannot_be_served_is_refused_and_gets_no_traffic(
    caller: httpx.AsyncClient, backbone: Backbone, copied: Registry, tmp_path: Path
) -> None:
    sick = publish_tiny_task(copied, backbone, seed=9)
    damage(tmp_path, sick)
    elsewhere = Candidate(
        task="tone", alias="prod", role=CandidateRole.CANARY, version=sick.version, share=1.0
    )

    failed = 'nunatak_loads_total{outcome="failed",task="tone"}'

    for path in (CANARY, SHADOW):
        body = {"version": sick.version, "share": 1.0}
        refused = await caller.put(path, json=body)
        assert (refused.status_code, refused.json()["code"]) == (503, "corrupt_blob")
    assert copied.task("tone").candidates == ()

    copied.rollouts.set(elsewhere)
    async with asyncio.timeout(30):
        while await counted(caller, failed) < 3:
            assert await served(caller) == 2
    assert await served(caller) == 2


@pytest.mark.parametrize("path", [CANARY, SHADOW, PROD])
async def test_the_log_names_policies_that_a_version_cannot_decide(
    caller: httpx.AsyncClient,
    backbone: Backbone,
    copied: Registry,
    caplog: pytest.LogCaptureFixture,
    path: str,
) -> None:
    (label,) = copied.resolve("tone").head.labels[:1]
    copied.policies.put(make_policy(make_rule(when("tone", label))))
    other = publish_tiny_task(copied, backbone, labels=("new", "newer"), seed=9).version

    body = {"version": other} if path == PROD else {"version": other, "share": 1.0}
    moved = await caller.put(path, json=body)

    assert moved.status_code == 200, moved.text
    (told,) = (it.getMessage() for it in caplog.records if "on_failure" in it.getMessage())
    named = "" if path == PROD else f"{path.rpartition('/')[2]} version {other}: "
    assert told.startswith(f"{named}policy 'guard': rule 'first', task 'tone': there is no label")


async def test_the_log_names_a_candidate_that_memory_has_no_room_for(
    backbone: Backbone, copied: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    large = publish_tiny_task(copied, backbone, seed=9, method=TopK(num_layers=3))
    role, number = CandidateRole.CANARY, large.version
    copied.rollouts.set(Candidate(task="tone", alias="prod", role=role, version=number, share=1.0))
    settings = make_settings(task_memory_bytes=large.blobs[0].size_bytes - 1)

    async with running_client(backbone, copied, settings) as client:
        assert await served(client) == 2

    (found,) = (it.getMessage() for it in caplog.records if large.reference in it.getMessage())
    assert found.startswith(f"cannot load {large.reference} next to its alias: ")


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        (CANARY, {"version": 2, "share": 0.1}, 422, "invalid_candidate"),
        (CANARY, {"version": 9, "share": 0.1}, 404, "version_not_found"),
        (CANARY, {"version": 3, "share": 0}, 422, "invalid_request"),
        (CANARY, {"version": 3, "share": 0.1, "expected_version": 1}, 409, "candidate_conflict"),
        (CANARY.replace("canary", "parrot"), {"version": 3, "share": 1}, 422, "invalid_request"),
    ],
)
async def test_a_candidate_that_makes_no_sense_is_refused(
    caller: httpx.AsyncClient, path: str, body: dict[str, float], status: int, code: str
) -> None:
    refused = await caller.put(path, json=body)

    assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert refused.headers["content-type"] == "application/problem+json"


async def test_a_rollback_loads_its_target_first_and_refuses_one_that_cannot_be_served(
    caller: httpx.AsyncClient, copied: Registry, tmp_path: Path
) -> None:
    copied.promote("tone", "prod", 3)

    assert await served(caller) == 3
    moved = await caller.post(f"{PROD}/rollback")
    resident = (await caller.get("/v1/tasks/tone")).json()["resident_versions"]
    assert (moved.json()["version"], resident) == (2, [2, 3])

    damage(tmp_path, copied.resolve("tone/1"))
    refused = await caller.post(f"{PROD}/rollback")
    assert (refused.status_code, refused.json()["code"]) == (503, "corrupt_blob")
    assert await served(caller) == 2


async def test_a_shadow_is_compared_on_the_same_trunk_and_never_seen(
    backbone: Backbone, copied: Registry
) -> None:
    # No row of the second request could share the held states of the first.
    settings = make_settings(trunk_cache_bytes=0)
    async with running_client(backbone, copied, settings) as client:
        alone = (await client.post(PREDICT, json={"inputs": ["one", "two"]})).json()
        await client.put(SHADOW, json={"version": 3, "share": 1.0})
        shared = await counted(client, "nunatak_shared_trunk_rows_total")

        together = (await client.post(PREDICT, json={"inputs": ["one", "two"]})).json()
        report = await report_of(client, inputs=2)

        assert together["version"] == 2
        for own, other in zip(alone["outputs"], together["outputs"], strict=True):
            assert [item["label"] for item in own] == [item["label"] for item in other]
            scores = [item["score"] for item in own]
            assert [item["score"] for item in other] == pytest.approx(scores, abs=1e-5)
        assert await counted(client, "nunatak_shared_trunk_rows_total") == shared + 2
        assert (report["version"], report["shadow_version"], report["share"]) == (2, 3, 1.0)
        assert (report["compared"], report["errors"], report["dropped"]) == (2, 0, 0)
        assert 0 <= report["agreement"] <= 1
        assert 0 < report["mean_drift"] <= report["max_drift"]
        assert sum(it["inputs"] for it in report["drift_histogram"]) == 2
        outcomes = [
            await counted(client, f'nunatak_shadow_inputs_total{{outcome="{it}",task="tone"}}')
            for it in ("agreed", "differed")
        ]
        assert sum(outcomes) == 2

        await client.post(f"{SHADOW}/end")
        none = await client.get("/v1/tasks/tone/shadow")
        assert (none.status_code, none.json()["code"]) == (404, "candidate_not_found")


@pytest.mark.parametrize(
    ("accept", "type_"),
    [
        ("application/json", "application/json"),
        ("*/*", "application/json"),
        ("application/x-ndjson;q=0", "application/json"),
        ("application/json, application/x-ndjson;q=0.9", "application/x-ndjson"),
    ],
)
async def test_only_who_names_lines_gets_lines(
    caller: httpx.AsyncClient, accept: str, type_: str
) -> None:
    body = {"inputs": "x", "tasks": ["tone"]}
    answer = await caller.post("/v1/predict", json=body, headers={"accept": accept})

    assert answer.headers["content-type"] == type_


async def test_an_explicit_version_ignores_aliases(caller: httpx.AsyncClient) -> None:
    answer = await caller.post("/v1/tasks/tone/3/predict", json={"inputs": "x"})

    assert answer.json()["version"] == 3
    assert await served(caller) == 2


async def test_preload_and_evict_change_what_is_resident(caller: httpx.AsyncClient) -> None:
    async def resident() -> list[int]:
        tasks = (await caller.get("/v1/memory")).json()["tasks"]
        return [task["version"] for task in tasks]

    loaded = (await caller.post("/v1/tasks/tone/preload?version=3")).json()
    assert (loaded["version"], loaded["resident"]) == (3, True)
    assert loaded["bytes"] > 0
    await caller.post("/v1/tasks/tone@prod/preload")
    assert await resident() == [2, 3]

    one = await caller.post("/v1/tasks/tone/evict?version=3")
    assert one.json() == {"task": "tone", "versions": [3]}
    assert await resident() == [2]
    assert (await caller.post("/v1/tasks/tone/evict")).json()["versions"] == [2]
    assert (await caller.post("/v1/tasks/nope/evict")).status_code == 404
    assert await served(caller) == 2


async def test_a_version_in_memory_cannot_be_deleted_until_it_is_evicted(
    caller: httpx.AsyncClient, copied: Registry
) -> None:
    async def readers_become(number: int) -> None:
        async with asyncio.timeout(5):
            while len(await asyncio.to_thread(copied.readers, "tone", 3)) != number:
                pass

    await caller.post("/v1/tasks/tone/preload", params={"version": 3})
    await readers_become(1)
    with raises("version_in_use"):
        copied.delete("tone", 3)

    await caller.post("/v1/tasks/tone/evict", params={"version": 3})
    await readers_become(0)
    copied.delete("tone", 3)


async def test_a_damaged_version_is_refused_and_its_neighbours_answer(
    caller: httpx.AsyncClient, backbone: Backbone, copied: Registry, tmp_path: Path
) -> None:
    sick = publish_tiny_task(copied, backbone, task="sick", seed=9)
    damage(tmp_path, sick, lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])

    answer = await caller.post("/v1/predict", json={"inputs": "hello", "tasks": ["sick", "tone"]})
    sick_result, tone_result = answer.json()["results"]
    alone = await caller.post("/v1/tasks/sick/predict", json={"inputs": "x"})
    moved = await caller.put("/v1/tasks/sick/aliases/prod", json={"version": 1})

    assert sick_result["error"]["code"] == "corrupt_blob"
    assert tone_result["version"] == 2
    for refused in (alone, moved):
        assert (refused.status_code, refused.json()["code"]) == (503, "corrupt_blob")
    assert copied.task("sick").aliases == {}
    assert int(alone.headers["retry-after"]) >= 1
    assert (await caller.get("/readyz")).status_code == 200
