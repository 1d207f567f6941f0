"""Servers that share a registry: their names, their beats, and the wait for all of them."""

import asyncio
import errno
import sqlite3
from collections.abc import Awaitable, Callable, Generator
from contextlib import closing, contextmanager
from functools import partial
from importlib.metadata import version as release_of
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from doubles.events import logged_events
from doubles.replicas import beat
from doubles.serving import make_settings, running_client
from doubles.tasks import publish_tiny_task
from nunatak_model import Backbone
from nunatak_registry import Registry, StoreUnavailableError

PREDICT, PROD = "/v1/tasks/tone/predict", "/v1/tasks/tone/aliases/prod"
SEEDS = {1: 11, 2: 22}
LIMIT_S, POLL_S = 20, 0.02


def publish(opened: Registry, backbone: Backbone) -> None:
    for seed in SEEDS.values():
        publish_tiny_task(opened, backbone, seed=seed)
    opened.promote("tone", "prod", 1)


async def version(client: httpx.AsyncClient) -> int:
    answer = await client.post(PREDICT, json={"inputs": "hi"})
    assert answer.status_code == 200, answer.text
    return answer.json()["version"]


async def listed(client: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    answer = await client.get("/v1/replicas")
    assert answer.status_code == 200, answer.text
    return {it["id"]: it for it in answer.json()["replicas"]}


async def test_every_answer_names_its_replica(backbone: Backbone, copied: Registry) -> None:
    settings = make_settings(replica_id="pod-7")
    async with running_client(backbone, copied, settings) as client:
        with logged_events() as events:
            answers = [
                await client.post(PREDICT, json={"inputs": "hi"}),
                await client.post(PREDICT, content=b"{", headers={"content-type": "text/plain"}),
                await client.get("/nowhere"),
                await client.get("/readyz"),
            ]

    assert [it.status_code for it in answers] == [200, 415, 404, 200]
    assert {it.headers["x-replica-id"] for it in answers} == {"pod-7"}
    assert {it.headers["x-nunatak-release"] for it in answers} == {release_of("nunatak")}
    assert {it["replica"] for it in events.named("request")} == {"pod-7"}


async def test_servers_without_a_name_have_different_ones(
    backbone: Backbone, copied: Registry
) -> None:
    async with running_client(backbone, copied) as one, running_client(backbone, copied) as two:
        names = {(await it.get("/livez")).headers["x-replica-id"] for it in (one, two)}

        assert len(names) == 2
        assert (await listed(one)).keys() == names

    assert copied.replicas.listing().replicas == (), "a server that ends leaves"


async def test_a_promotion_that_waits_is_seen_by_every_replica(
    backbone: Backbone, copied: Registry
) -> None:
    async with (
        running_client(backbone, copied, make_settings(registry_lease_s=60)) as one,
        running_client(backbone, copied) as two,
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
    backbone: Backbone, copied: Registry
) -> None:
    beat(copied, "late", seen=copied.generation())
    async with running_client(backbone, copied) as one:
        answer = await one.put(PROD, params={"wait_s": 1}, json={"version": 2})

        assert (answer.status_code, answer.json()["code"]) == (504, "replicas_behind")
        assert "had not confirmed it: late;" in answer.json()["detail"]
        assert await version(one) == 2, "the change is made"


async def test_a_server_whose_lease_ends_answers_503_until_the_registry_is_back(
    backbone: Backbone, copied: Registry, tmp_path: Path
) -> None:
    index, away = tmp_path / "index.sqlite3", tmp_path / "away"
    settings = make_settings(registry_lease_s=1)
    async with running_client(backbone, copied, settings) as client:
        assert await version(client) == 1
        index.rename(away)
        await wait_for(client, 503)
        refused = await client.post(PREDICT, json={"inputs": "hi"})
        assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")

        away.rename(index)
        copied.promote("tone", "prod", 2)
        await wait_for(client, 200)
        assert await version(client) == 2


@contextmanager
def locked(folder: Path) -> Generator[sqlite3.Connection]:
    """Lock an index against readers too, and yield the only connection that can read it."""
    with closing(sqlite3.connect(folder / "index.sqlite3", isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield connection
        connection.execute("COMMIT")


async def test_a_lock_of_the_index_right_after_a_change_stops_no_task_in_use(
    caller: httpx.AsyncClient, copied: Registry, tmp_path: Path
) -> None:
    async def is_current() -> bool:
        return all(it["is_current"] for it in (await listed(caller)).values())

    copied.promote("tone", "beta", 1)
    # The server has applied every change, so it keeps what it looks up from now on.
    await until(is_current)
    assert await version(caller) == 1
    # In one step of the event loop, so that the server cannot follow before the lock.
    copied.promote("tone", "prod", 2)
    with locked(tmp_path) as index:
        async with asyncio.timeout(LIMIT_S):
            for _ in range(20):
                assert await version(caller) == 1
                await asyncio.sleep(POLL_S)
        (confirmed,) = index.execute("SELECT revision FROM nunatak_replicas").fetchall()
        (present,) = index.execute("SELECT generation FROM nunatak_state").fetchall()
        assert confirmed < present, "what is not applied is not confirmed"

    async def has_followed() -> bool:
        return await version(caller) == 2

    await until(has_followed)

    # The server follows its own change at once, and its next poll finds the change again.
    (await caller.put(PROD, json={"version": 1})).raise_for_status()
    await until(is_current)
    with locked(tmp_path):
        async with asyncio.timeout(LIMIT_S):
            assert await version(caller) == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", PROD),
        ("POST", f"{PROD}/rollback"),
        ("PUT", f"{PROD}/canary"),
        ("POST", "/v1/tasks/tone/preload"),
        ("POST", "/v1/tasks/tone/pin"),
    ],
)
async def test_an_operator_waits_for_a_silent_registry_no_longer_than_the_request_says(
    caller: httpx.AsyncClient, copied: Registry, tmp_path: Path, method: str, path: str
) -> None:
    copied.promote("tone", "prod", 2)
    body = {"version": 1, "share": 0.1} if path.endswith("canary") else {"version": 1}
    with locked(tmp_path):
        async with asyncio.timeout(3):
            late = await caller.request(
                method,
                path,
                json=body if method == "PUT" else None,
                headers={"x-deadline-ms": "50"},
            )

    assert (late.status_code, late.json()["code"]) == (504, "deadline_exceeded")


async def test_a_change_whose_end_is_unknown_is_not_said_to_be_repeatable(
    caller: httpx.AsyncClient, copied: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied.promote("tone", "prod", 2)
    rollback = copied.rollback

    def cut(*given: Any, **options: Any) -> None:  # noqa: ANN401 - of the registry
        rollback(*given, **options)
        raise StoreUnavailableError("the connection broke")

    monkeypatch.setattr(copied, "rollback", cut)
    answer = await caller.post(f"{PROD}/rollback", json={})

    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    assert "retry-after" not in answer.headers


async def test_a_change_is_told_also_if_the_registry_is_silent_afterwards(
    caller: httpx.AsyncClient, copied: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(_: int) -> list[str]:
        raise StoreUnavailableError("the connection broke")

    monkeypatch.setattr(copied.replicas, "behind", silent)
    answer = await caller.put(PROD, params={"wait_s": 1}, json={"version": 2})

    assert (answer.status_code, answer.json()["code"]) == (504, "replicas_behind")
    assert answer.json()["detail"].startswith("the change is made")
    assert await version(caller) == 2


async def test_a_server_alone_tells_at_once_that_it_is_ready_and_has_a_version(
    backbone: Backbone, copied: Registry
) -> None:
    async with running_client(backbone, copied, make_settings(replica_id="a")) as client:

        async def tells(versions: int) -> bool:
            load = (await listed(client))["a"]["load"]
            return bool(load["ready"]) and load["versions"] == versions

        await until(partial(tells, 0))
        await version(client)
        await until(partial(tells, 1))


async def test_a_server_that_cannot_measure_itself_goes_on(
    backbone: Backbone, copied: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: psutil.Process) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(psutil.Process, "memory_info", fail)
    settings = make_settings(replica_id="a", registry_lease_s=1)
    async with running_client(backbone, copied, settings) as client:
        answer = await client.put(PROD, params={"wait_s": 20}, json={"version": 2})

        assert answer.status_code == 200, answer.text
        assert await version(client) == 2
        assert (await listed(client))["a"]["load"]["process_bytes"] == 0


async def wait_for(client: httpx.AsyncClient, status: int) -> None:
    async def has_come() -> bool:
        return (await client.get("/readyz")).status_code == status

    await until(has_come)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await condition():  # noqa: ASYNC110 - a poll of the server
            await asyncio.sleep(POLL_S)
