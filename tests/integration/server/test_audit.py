"""The audit log of a server: every act of an operator, and no act without its line."""

import asyncio
import json
import os
import threading
from pathlib import Path

import pytest

from doubles.access import access_by_route, add_key, filled
from doubles.serving import make_settings, running_client
from doubles.tasks import publish_tiny_task
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.access.keys import Scope

PROD = "/v1/tasks/tone/aliases/prod"
ACTS = [
    (verb, template)
    for (verb, template), needed in access_by_route().items()
    if needed is not None and needed.scope is Scope.ADMIN
]


def publish(opened: Registry, backbone: Backbone) -> None:
    for seed in range(2):
        publish_tiny_task(opened, backbone, seed=seed)
    opened.promote("tone", "prod", 1)


async def test_each_act_is_logged_with_its_caller_and_outcome(
    backbone: Backbone, copied: Registry, tmp_path: Path
) -> None:
    path, keys = tmp_path / "audit.jsonl", tmp_path / "keys.json"
    ops = add_key(keys, "anonymous")
    reader = add_key(keys, "reader", scopes=[Scope.PREDICT, Scope.READ])
    settings, answers = make_settings(api_keys_file=keys, audit_log=path), list[str]()
    async with running_client(backbone, copied, settings) as client:
        for verb, template in ACTS:
            for body in ({"version": 2}, {"bad": 1}):
                answer = await client.request(verb, filled(template), headers=ops, json=body)
                answers.append(answer.json().get("code", "done"))
                await client.request(verb, filled(template), headers=reader, json=body)
                await client.request(verb, filled(template), json=body)
        query = {"inputs": "where is it?"}
        assert (
            await client.post("/v1/tasks/tone/predict", headers=ops, json=query)
        ).status_code == 200

    text = path.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [it["outcome"] for it in lines[::2]] == ["begun"] * len(answers)
    assert [it["outcome"] for it in lines[1::2]] == answers
    assert {"done", "invalid_request"} <= {*answers}
    assert {it["by"] for it in lines} == {"key anonymous"}
    assert [it["act"] for it in lines[::4]] == [" ".join(it) for it in ACTS]
    assert all(it["request_id"] and it["object"]["task"] == "tone" for it in lines)
    assert all(it["at"].endswith("+00:00") for it in lines)
    assert all(it["body"] == {"version": 2} for it in lines[::4])
    assert ops["authorization"].split()[1] not in text
    assert path.stat().st_mode & 0o777 == 0o600


async def test_no_act_is_done_while_the_log_cannot_be_written(
    backbone: Backbone, copied: Registry, tmp_path: Path
) -> None:
    path = tmp_path / "logs" / "audit.jsonl"
    path.parent.mkdir()
    async with running_client(backbone, copied, make_settings(audit_log=path)) as client:
        path.unlink()
        path.parent.rmdir()
        refused = [
            (await client.request(verb, filled(template), json={"version": 2})).json()
            for verb, template in ACTS
        ]
        served = await client.post("/v1/tasks/tone/predict", json={"inputs": "where is it?"})
        assert (await client.get("/readyz")).status_code == 200
        assert copied.resolve("tone").version == 1
        path.parent.mkdir()
        promoted = await client.put(PROD, json={"version": 2})

    assert {(it["status"], it["code"]) for it in refused} == {(503, "audit_log_failed")}
    assert (served.status_code, promoted.status_code) == (200, 200)
    assert copied.resolve("tone").version == 2
    assert len(path.read_text().splitlines()) == 2


async def test_a_slow_disk_delays_the_act_alone(
    backbone: Backbone, copied: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, is_free = os.pread, threading.Event()

    def read_late(descriptor: int, num_bytes: int, place: int) -> bytes:
        is_free.wait(10)
        return read(descriptor, num_bytes, place)

    settings = make_settings(audit_log=tmp_path / "audit.jsonl")
    async with running_client(backbone, copied, settings) as client:
        await client.put(PROD, json={"version": 1})
        monkeypatch.setattr(os, "pread", read_late)
        act = asyncio.create_task(client.put(PROD, json={"version": 2}))
        served = await client.post("/v1/tasks/tone/predict", json={"inputs": "where is it?"})
        is_waiting = not act.done()
        is_free.set()

        assert (served.json()["version"], is_waiting) == (1, True)
        assert (await act).status_code == 200
