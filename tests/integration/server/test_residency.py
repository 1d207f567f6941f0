import asyncio
import gc
import itertools
import logging
import platform
import random
from typing import Any

import httpx
import psutil
import pytest

from doubles.serving import make_settings, running_client
from doubles.tasks import publish_tiny_task
from nunatak_contract.manifest import TaskManifest
from nunatak_model import Backbone, Branch, Row, forward
from nunatak_registry import Registry, StoreUnavailableError
from nunatak_server.residency.resident_set import return_memory, size_in_memory
from nunatak_server.settings import ServerSettings
from nunatak_versions import load_task

TEXTS = ("where is my parcel?", "a much longer text about nothing at all", "hello")
NUM_TASKS, NUM_ANSWERS, NUM_ASKERS = 8, 120, 6
LOGITS = {"function_to_apply": "none", "top_k": 3}

Oracle = dict[tuple[str, int, str], dict[str, float]]


def publish(opened: Registry, backbone: Backbone) -> None:
    """A registry with two versions of each task; the first has the alias."""
    for index in range(NUM_TASKS):
        for number in range(2):
            publish_tiny_task(opened, backbone, task=f"task-{index}", seed=2 * index + number)
        opened.promote(f"task-{index}", "prod", 1)


@pytest.fixture
def versions(copied: Registry) -> list[TaskManifest]:
    return [it for index in range(NUM_TASKS) for it in copied.versions(f"task-{index}")]


def room_for(count: float, version: TaskManifest, backbone: Backbone) -> ServerSettings:
    """Settings whose budget holds `count` versions of one size."""
    size = size_in_memory(version, dtype=backbone.dtype)
    return make_settings(task_memory_bytes=int(count * size))


def oracle_of(copied: Registry, versions: list[TaskManifest], backbone: Backbone) -> Oracle:
    """Logits of every version for every text, each computed alone."""
    found: Oracle = {}
    for manifest in versions:
        branch = load_task(manifest, copied.read_blob(manifest), backbone).branch
        encodings = backbone.tokenizer.encode(TEXTS, max_length=manifest.max_length)
        for text, encoding in zip(TEXTS, encodings, strict=True):
            (logits,) = forward(backbone, [Row(encoding=encoding, branch=branch)])
            named = zip(manifest.head.labels, map(float, logits), strict=True)
            found[manifest.task, manifest.version, text] = dict(named)
    return found


def differs(answer: dict[str, Any], text: str, oracle: Oracle) -> bool:
    """Return whether an answer differs from the answer of the version it names."""
    expected = oracle[answer["task"], answer["version"], text]
    given = {item["label"]: item["score"] for item in answer["outputs"]}
    return given.keys() != expected.keys() or any(
        abs(given[label] - expected[label]) > 1e-4 for label in expected
    )


async def operate(client: httpx.AsyncClient, stop: asyncio.Event) -> int:
    """Promote, roll back, preload and evict in turns until stopped; return the number of turns."""
    draw = random.Random(7)
    for count in itertools.count():
        if stop.is_set():
            return count
        path = f"/v1/tasks/task-{draw.randrange(NUM_TASKS)}"
        match count % 4:
            case 0:
                version = draw.randint(1, 2)
                await client.put(f"{path}/aliases/prod", json={"version": version})
            case 1:
                await client.post(f"{path}/aliases/prod/rollback")
            case 2:
                await client.post(f"{path}/preload")
            case _:
                await client.post(f"{path}/evict")
    raise AssertionError


async def test_every_answer_matches_the_version_it_names_during_changes_by_operators(
    backbone: Backbone, copied: Registry, versions: list[TaskManifest]
) -> None:
    oracle = oracle_of(copied, versions, backbone)

    wrong: list[object] = []
    settings = room_for(3.5, versions[0], backbone)
    async with running_client(backbone, copied, settings) as client:

        async def ask(seed: int) -> None:
            draw = random.Random(seed)
            for _ in range(NUM_ANSWERS // NUM_ASKERS):
                text, task = draw.choice(TEXTS), f"task-{draw.randrange(NUM_TASKS)}"
                body = {"inputs": text, "parameters": LOGITS}
                answer = await client.post(f"/v1/tasks/{task}/predict", json=body)
                if answer.status_code != 200 or differs(answer.json(), text, oracle):
                    wrong.append(answer.text)

        stop = asyncio.Event()
        operating = asyncio.create_task(operate(client, stop))
        await asyncio.gather(*map(ask, range(NUM_ASKERS)))
        stop.set()
        assert await operating > 10
        device = (await client.get("/v1/memory")).json()["tiers"]["device"]
    assert wrong == []
    assert device["bytes"] <= device["budget_bytes"]
    assert device["versions"] <= 3


async def test_an_alias_lets_go_of_the_version_it_means_alone(
    backbone: Backbone, copied: Registry, versions: list[TaskManifest]
) -> None:
    settings = room_for(2.5, versions[0], backbone)
    async with running_client(backbone, copied, settings) as client:
        for version in ("1", "2"):
            await client.post("/v1/tasks/task-0/pin", params={"version": version})

        for verb in ("unpin", "evict"):
            answer = await client.post(f"/v1/tasks/task-0@prod/{verb}")
            assert answer.json() == {"task": "task-0", "versions": [1]}
            of_all = await client.post(f"/v1/tasks/task-0/{verb}", json={"version": 1})
            assert (of_all.status_code, of_all.json()["code"]) == (422, "invalid_request")
            absent = await client.post(f"/v1/tasks/task-0@nope/{verb}")
            assert (absent.status_code, absent.json()["code"]) == (404, "alias_not_found")

        (left,) = (await client.get("/v1/memory")).json()["tasks"]
        assert (left["version"], left["pinned"]) == (2, True)


@pytest.fixture
def earlier_objects_aside() -> None:
    """The objects of earlier tests are walked through once, and not at each count.

    They stay aside: among them, each later collection would take seconds.
    """
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("earlier_objects_aside")
async def test_an_evicted_version_leaves_nothing_behind(
    backbone: Backbone, copied: Registry, versions: list[TaskManifest]
) -> None:
    settings = room_for(2.5, versions[0], backbone)
    async with running_client(backbone, copied, settings) as client:
        before = num_branches()
        for index in range(3 * NUM_TASKS):
            task = f"/v1/tasks/task-{index % NUM_TASKS}"
            await client.post(f"{task}/predict", json={"inputs": TEXTS[0]})
        for index in range(NUM_TASKS):
            await client.post(f"/v1/tasks/task-{index}/evict")

        # The engine releases its last batch a moment after the answers.
        async with asyncio.timeout(10):
            while num_branches() > before:
                await client.get("/livez")


def num_branches() -> int:
    """The number of versions in the memory of this process."""
    gc.collect()
    return sum(type(each) is Branch for each in gc.get_objects())


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the return needs glibc")
def test_freed_memory_goes_back_to_the_operating_system() -> None:
    process = psutil.Process()
    # Smaller than the blocks that glibc maps separately, and followed by a block that stays.
    blocks = [bytearray(100_000) for _ in range(1000)]
    kept = bytearray(1000)
    held = process.memory_info().rss
    blocks.clear()

    return_memory()

    assert process.memory_info().rss < held - 50_000_000
    assert len(kept) == 1000


async def test_who_waits_for_a_version_in_memory_waits_no_longer_than_it_says(
    caller: httpx.AsyncClient, versions: list[TaskManifest]
) -> None:
    """No alias has moved then, and the next request finds the loaded version."""
    paths = {
        "/v1/tasks/task-0/preload": None,
        "/v1/tasks/task-1/pin": None,
        "/v1/tasks/task-2/aliases/prod": {"version": 2},
        "/v1/tasks/task-3/aliases/prod/canary": {"version": 2, "share": 0.1},
    }

    for path, body in paths.items():
        method, hurry = "PUT" if body else "POST", {"x-deadline-ms": "1"}
        late = await caller.request(method, path, json=body, headers=hurry)
        assert (late.status_code, late.json()["code"]) == (504, "deadline_exceeded")
    for index in (2, 3):
        shown = (await caller.get(f"/v1/tasks/task-{index}")).json()
        assert (shown["aliases"], shown["candidates"]) == ({"prod": 1}, [])
    for path, body in paths.items():
        answer = await caller.request("PUT" if body else "POST", path, json=body)
        assert answer.status_code == 200
    assert len(versions) == 2 * NUM_TASKS


def held(backbone: Backbone, copied: Registry, pins: str) -> dict[str, bool]:
    """The versions in memory when the server becomes ready, and whether each is pinned."""

    async def ask() -> dict[str, bool]:
        async with running_client(backbone, copied, make_settings(pins=pins)) as client:
            tasks = (await client.get("/v1/memory")).json()["tasks"]
        return {f"{it['task']}/{it['version']}": it["pinned"] for it in tasks}

    return asyncio.run(ask())


def test_pins_are_in_memory_before_the_first_request(backbone: Backbone, copied: Registry) -> None:
    assert held(backbone, copied, "") == {}
    assert held(backbone, copied, "task-0, task-1/2") == {"task-0/1": True, "task-1/2": True}


async def test_a_start_waits_for_the_registry_and_pins_are_answered_in_an_outage(
    backbone: Backbone, copied: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        outage.append(1)
        if len(outage) == 2:
            monkeypatch.undo()
        raise StoreUnavailableError("the connection broke")

    outage = list[int]()
    monkeypatch.setattr(copied, "traffic", fail)
    monkeypatch.setattr(copied, "generation", fail)
    async with running_client(backbone, copied, make_settings(pins="task-0")) as client:
        monkeypatch.setattr(copied, "traffic", fail)
        answer = await client.post("/v1/tasks/task-0/predict", json={"inputs": "x"})

    assert answer.status_code == 200, answer.text


def test_a_pin_that_cannot_be_served_spares_the_others(
    backbone: Backbone, copied: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert held(backbone, copied, "nope@prod,task-0") == {"task-0/1": True}

    assert "nope@prod is not pinned: " in caplog.text
