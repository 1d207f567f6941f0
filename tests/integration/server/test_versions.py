import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from doubles.processes import ended
from doubles.refusals import raises
from doubles.tasks import publish_tiny_task
from nunatak_contract.manifest import TaskManifest
from nunatak_model import Backbone
from nunatak_registry import Registry

PREDICT = "/v1/tasks/tone/predict"
PROMOTE = """
import sys

from nunatak_registry import Registry

with Registry.open(sys.argv[1]) as registry:
    registry.promote("tone", "prod", 2)
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, backbone: Backbone) -> Path:
    folder = tmp_path_factory.mktemp("template")
    with Registry.open(folder) as opened:
        publish_tiny_task(opened, backbone, seed=1)
        publish_tiny_task(opened, backbone, seed=2)
        opened.promote("tone", "prod", 1)
    return folder


def blob_file(folder: Path, manifest: TaskManifest) -> Path:
    (file,) = folder.rglob(f"*{manifest.blobs[0].sha256}*")
    return file


def overwrite(file: Path, change: Callable[[bytes], bytes]) -> None:
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(change(data))


async def version_served(client: httpx.AsyncClient) -> int:
    answer = await client.post(PREDICT, json={"inputs": "hello"})
    assert answer.status_code == 200, answer.text
    version: int = answer.json()["version"]
    return version


async def test_a_promotion_is_visible_to_the_next_request(caller: httpx.AsyncClient) -> None:
    assert await version_served(caller) == 1

    moved = await caller.put(
        "/v1/tasks/tone/aliases/prod", json={"version": 2, "expected_version": 1}
    )

    assert moved.json() == {"task": "tone", "alias": "prod", "version": 2, "previous_version": 1}
    assert await version_served(caller) == 2


async def test_a_promotion_by_another_process_is_seen_within_a_second(
    caller: httpx.AsyncClient, tmp_path: Path
) -> None:
    assert await version_served(caller) == 1
    done = await asyncio.to_thread(ended, PROMOTE, str(tmp_path))
    assert done.status == 0, done.stderr
    async with asyncio.timeout(1):
        while await version_served(caller) != 2:
            pass


async def test_an_explicit_version_ignores_aliases(caller: httpx.AsyncClient) -> None:
    answer = await caller.post("/v1/tasks/tone/2/predict", json={"inputs": "x"})

    assert answer.json()["version"] == 2
    assert await version_served(caller) == 1


async def test_preload_and_evict_change_what_is_resident(caller: httpx.AsyncClient) -> None:
    async def resident() -> list[int]:
        tasks = (await caller.get("/v1/memory")).json()["tasks"]
        return [task["version"] for task in tasks]

    loaded = (await caller.post("/v1/tasks/tone/preload?version=2")).json()
    assert (loaded["version"], loaded["resident"]) == (2, True)
    assert loaded["bytes"] > 0
    await caller.post("/v1/tasks/tone@prod/preload")
    assert await resident() == [1, 2]

    one = await caller.post("/v1/tasks/tone/evict?version=2")
    assert one.json() == {"task": "tone", "versions": [2]}
    assert await resident() == [1]
    assert (await caller.post("/v1/tasks/tone/evict")).json()["versions"] == [1]
    assert (await caller.post("/v1/tasks/nope/evict")).status_code == 404
    assert await version_served(caller) == 1


async def test_a_version_in_memory_cannot_be_deleted_until_it_is_evicted(
    caller: httpx.AsyncClient, registry: Registry
) -> None:
    async def readers_become(number: int) -> None:
        async with asyncio.timeout(5):
            while len(await asyncio.to_thread(registry.readers, "tone", 2)) != number:
                pass

    await caller.post("/v1/tasks/tone/preload", params={"version": 2})
    await readers_become(1)
    with raises("version_in_use"):
        registry.delete("tone", 2)

    await caller.post("/v1/tasks/tone/evict", params={"version": 2})
    await readers_become(0)
    registry.delete("tone", 2)


async def test_a_damaged_version_is_refused_and_its_neighbours_answer(
    caller: httpx.AsyncClient, backbone: Backbone, registry: Registry, tmp_path: Path
) -> None:
    sick = publish_tiny_task(registry, backbone, task="sick", seed=9)
    overwrite(blob_file(tmp_path, sick), lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])

    answer = await caller.post("/v1/predict", json={"inputs": "hello", "tasks": ["sick", "tone"]})
    sick_result, tone_result = answer.json()["results"]
    alone = await caller.post("/v1/tasks/sick/predict", json={"inputs": "x"})
    moved = await caller.put("/v1/tasks/sick/aliases/prod", json={"version": 1})

    assert sick_result["error"]["code"] == "corrupt_blob"
    assert tone_result["version"] == 1
    for refused in (alone, moved):
        assert (refused.status_code, refused.json()["code"]) == (503, "corrupt_blob")
    assert registry.task("sick").aliases == {}
    assert int(alone.headers["retry-after"]) >= 1
    assert (await caller.get("/readyz")).status_code == 200
