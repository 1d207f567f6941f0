"""A registry that is restored from a backup under a running server."""

import asyncio
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from doubles.restores import FileSite, PostgresSite, RestoreSite
from doubles.tasks import LABELS, logits_alone, publish_tiny_task
from nunatak_model import Backbone
from nunatak_registry import Candidate, CandidateRole, Registry

TEXT = "where is my parcel?"
OLD, LOST, NEW = 11, 22, 33
"""The seeds of version 1, of the version 2 that the restore removes, and of the new version 2."""


@pytest.fixture(params=["rename", "sqlite", "postgresql"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> RestoreSite:
    if request.param == "postgresql":
        return PostgresSite(tmp_path, request.getfixturevalue("postgres"))
    return FileSite(tmp_path, is_renamed=request.param == "rename")


@pytest.fixture
def copied(site: RestoreSite, backbone: Backbone) -> Generator[Registry]:
    with Registry.open(site.location) as opened:
        publish_tiny_task(opened, backbone, seed=OLD)
        opened.promote("tone", "prod", 1)
        site.back_up("early")
        publish_tiny_task(opened, backbone, seed=LOST)
        opened.promote("tone", "prod", 2)
        yield opened


def expected(backbone: Backbone, seed: int) -> object:
    (logits,) = logits_alone(backbone, [TEXT], seed=seed)
    return pytest.approx(dict(zip(LABELS, logits, strict=True)), abs=1e-4)


async def ask(client: httpx.AsyncClient, task: str = "tone") -> tuple[int, dict[str, float]]:
    body = {"inputs": TEXT, "parameters": {"function_to_apply": "none"}}
    answer = (await client.post(f"/v1/tasks/{task}/predict", json=body)).raise_for_status().json()
    return answer["version"], {item["label"]: item["score"] for item in answer["outputs"]}


async def become(client: httpx.AsyncClient, version: int) -> None:
    """Wait for the alias to mean a version, for one second."""
    async with asyncio.timeout(1):
        while (await ask(client))[0] != version:
            pass


async def become_held(copied: Registry, version: int) -> None:
    """Wait for the server to hold a version, for five seconds."""
    async with asyncio.timeout(5):
        while not await asyncio.to_thread(copied.readers, "tone", version):
            pass


async def test_a_promotion_after_a_restore_is_seen_and_made_on_the_restored_index(
    caller: httpx.AsyncClient, backbone: Backbone, copied: Registry, site: RestoreSite
) -> None:
    assert (await ask(caller))[0] == 2
    restoring = asyncio.create_task(asyncio.to_thread(site.restore, "early"))
    while not restoring.done():
        assert (await ask(caller))[0] in {1, 2}
    await restoring
    await become(caller, 1)

    publish_tiny_task(copied, backbone, seed=NEW)
    moved = await caller.put("/v1/tasks/tone/aliases/prod", json={"version": 2})

    assert moved.status_code == 200, moved.text
    assert await ask(caller) == (2, expected(backbone, NEW))
    with Registry.open(site.location) as other:
        assert other.task("tone").aliases == {"prod": 2}


async def test_a_candidate_of_a_reused_number_is_validated_again(
    caller: httpx.AsyncClient, backbone: Backbone, copied: Registry, site: RestoreSite
) -> None:
    canary = Candidate(task="tone", alias="prod", role=CandidateRole.CANARY, version=2, share=1.0)
    copied.promote("tone", "prod", 1)
    copied.rollouts.set(canary)

    def restore() -> None:
        site.restore("early")
        with Registry.open(site.location) as other:
            publish_tiny_task(other, backbone, seed=NEW)
            other.rollouts.set(canary)

    await become(caller, 2)

    await asyncio.to_thread(restore)

    found = list[tuple[int, dict[str, float]]]()
    async with asyncio.timeout(2):
        while not found or found[-1] != (2, expected(backbone, NEW)):
            found.append(await ask(caller))
    assert (1, expected(backbone, OLD)) in found, "unproven, it left its share"


@pytest.mark.parametrize("site", ["rename"], indirect=True)
async def test_an_index_that_is_missing_leaves_what_is_known_in_service(
    caller: httpx.AsyncClient, copied: Registry, site: RestoreSite
) -> None:
    index = Path(site.location) / "index.sqlite3"

    assert (await caller.get("/readyz")).json() == {"status": "ready", "warnings": []}
    await caller.post("/v1/tasks/tone/preload?version=2")
    # By then the server has polled the registry, and empties its cache no more.
    await become_held(copied, 2)
    assert (await ask(caller))[0] == 2
    index.unlink()

    async with asyncio.timeout(5):
        while not (await caller.get("/readyz")).json()["warnings"]:
            assert (await ask(caller))[0] == 2
    assert (await ask(caller))[0] == 2
    refused = await caller.put("/v1/tasks/tone/aliases/prod", json={"version": 1})
    assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
    assert "nunatak_registry_readable 0.0" in (await caller.get("/metrics")).text
    assert not index.exists()

    await asyncio.to_thread(site.restore, "early")

    await become(caller, 1)
    assert (await caller.get("/readyz")).json()["warnings"] == []
