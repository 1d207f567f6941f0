"""Servers that share a registry: their names, their beats, and the wait for all of them."""

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from doubles.backbones import tiny_backbone
from doubles.events import logged_events
from doubles.replicas import beat
from doubles.serving import make_settings, running_client
from doubles.tasks import publish_tiny_task
from nunatak_model import Backbone
from nunatak_registry import Registry

PREDICT, PROD = "/v1/tasks/tone/predict", "/v1/tasks/tone/aliases/prod"
SEEDS = {1: 11, 2: 22}
LIMIT_S, POLL_S = 20, 0.02


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny_backbone()


@pytest.fixture
def registry(tmp_path: Path, backbone: Backbone) -> Generator[Registry]:
    with Registry.open(tmp_path) as opened:
        for seed in SEEDS.values():
            publish_tiny_task(opened, backbone, seed=seed)
        opened.promote("tone", "prod", 1)
        yield opened


async def version(client: httpx.AsyncClient) -> int:
    answer = await client.post(PREDICT, json={"inputs": "hi"})
    assert answer.status_code == 200, answer.text
    return answer.json()["version"]


async def listed(client: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    answer = await client.get("/v1/replicas")
    assert answer.status_code == 200, answer.text
    return {it["id"]: it for it in answer.json()["replicas"]}


async def test_every_answer_names_its_replica(backbone: Backbone, registry: Registry) -> None:
    settings = make_settings(replica_id="pod-7")
    async with running_client(backbone, registry, settings) as client:
        with logged_events() as events:
            answers = [
                await client.post(PREDICT, json={"inputs": "hi"}),
                await client.post(PREDICT, content=b"{", headers={"content-type": "text/plain"}),
                await client.get("/nowhere"),
                await client.get("/readyz"),
            ]

    assert [it.status_code for it in answers] == [200, 415, 404, 200]
    assert {it.headers["x-replica-id"] for it in answers} == {"pod-7"}
    assert {it["replica"] for it in events.named("request")} == {"pod-7"}


async def test_servers_without_a_name_have_different_ones(
    backbone: Backbone, registry: Registry
) -> None:
    async with (
        running_client(backbone, registry) as one,
        running_client(backbone, registry) as two,
    ):
        names = {(await it.get("/livez")).headers["x-replica-id"] for it in (one, two)}

        assert len(names) == 2
        assert (await listed(one)).keys() == names

    assert registry.replicas.listing().replicas == (), "a server that ends leaves"


async def test_a_promotion_that_waits_is_seen_by_every_replica(
    backbone: Backbone, registry: Registry
) -> None:
    async with (
        running_client(backbone, registry, make_settings(registry_lease_s=60)) as one,
        running_client(backbone, registry) as two,
    ):
        for number in (2, 1, 2, 1, 2):
            assert await version(two)
            answer = await one.put(PROD, params={"wait_s": 20}, json={"version": number})
            assert answer.status_code == 200, answer.text
            assert [await version(it) for it in (one, two)] == [number, number]
        rolled_back = await two.post(f"{PROD}/rollback", params={"wait_s": 20}, json={})
        assert rolled_back.json()["version"] == await version(one) == 1
        assert {it["is_current"] for it in (await listed(two)).values()} == {True}


async def test_a_wait_for_a_replica_that_does_not_follow_is_refused_by_its_name(
    backbone: Backbone, registry: Registry
) -> None:
    beat(registry, "late", seen=registry.generation())
    async with running_client(backbone, registry) as one:
        answer = await one.put(PROD, params={"wait_s": 1}, json={"version": 2})

        assert (answer.status_code, answer.json()["code"]) == (504, "replicas_behind")
        assert "had not confirmed it: late;" in answer.json()["detail"]
        assert await version(one) == 2, "the change is made"


async def test_a_server_whose_lease_ends_answers_503_until_the_registry_is_back(
    backbone: Backbone, registry: Registry, tmp_path: Path
) -> None:
    index, away = tmp_path / "index.sqlite3", tmp_path / "away"
    settings = make_settings(registry_lease_s=1)
    async with running_client(backbone, registry, settings) as client:
        assert await version(client) == 1
        index.rename(away)
        await wait_for(client, 503)
        refused = await client.post(PREDICT, json={"inputs": "hi"})
        assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")

        away.rename(index)
        registry.promote("tone", "prod", 2)
        await wait_for(client, 200)
        assert await version(client) == 2


async def wait_for(client: httpx.AsyncClient, status: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (await client.get("/readyz")).status_code != status:  # noqa: ASYNC110 - a poll of the server
            await asyncio.sleep(POLL_S)
