"""The log lines of requests, and the secrets that must not be in logs, metrics and traces."""

import logging
from pathlib import Path

import httpx
import pytest

from doubles.access import add_key
from doubles.events import logged_events
from doubles.serving import make_settings, running_client
from doubles.tasks import publish_tiny_task
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.access.keys import Scope

PREDICT = "/v1/tasks/tone/predict"


def publish(opened: Registry, backbone: Backbone) -> None:
    for task in ("tone", "new"):
        publish_tiny_task(opened, backbone, task=task)


async def test_a_request_is_one_event_with_what_it_passed_through(
    client: httpx.AsyncClient,
) -> None:
    with logged_events() as events:
        answer = await client.post(
            PREDICT, json={"inputs": "x"}, headers={"x-request-id": "mine-1"}
        )
        (event,) = events.named("request")

    assert answer.status_code == event["status"] == 200
    assert (event["request_id"], event["method"]) == ("mine-1", "POST")
    assert event["route"] == "/v1/tasks/{task}/predict"
    assert event["tasks"] == ["tone/1"]
    assert event["batch_rows"] == 1
    assert event["load_ms"] > 0
    assert event["duration_ms"] >= event["load_ms"] + event["queue_ms"]
    assert "failed" not in event


async def test_a_stream_is_one_event_with_the_tasks_of_all_its_parts(
    client: httpx.AsyncClient,
) -> None:
    await client.post(PREDICT, json={"inputs": "x"})
    with logged_events() as events:
        await client.post(
            "/v1/predict",
            json={"inputs": "x", "tasks": ["tone", "new"]},
            headers={"accept": "application/x-ndjson"},
        )
        (event,) = events.named("request")

    assert sorted(event["tasks"]) == ["new/1", "tone/1"]
    assert event["load_ms"] > 0


async def test_an_event_names_the_callers_key_and_nobody_who_has_none(
    backbone: Backbone, registry: Registry, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    headers = add_key(keys, "support-desk", scopes=[Scope.PREDICT])

    settings = make_settings(api_keys_file=keys)
    async with running_client(backbone, registry, settings) as client:
        with logged_events() as events:
            for sent, path in ((headers, PREDICT), (headers, "/v1/tasks/tone/pin"), ({}, PREDICT)):
                await client.post(path, json={"inputs": "x"}, headers=sent)
            known, refused, stranger = events.named("request")

        assert (known["status"], known["caller"]) == (200, "support-desk")
        assert (refused["status"], refused["caller"]) == (403, "support-desk")
        assert stranger["status"] == 401
        assert "caller" not in stranger


@pytest.mark.parametrize(
    ("verb", "path", "body", "task"),
    [
        ("PUT", "aliases/prod", {"version": 1}, "tone/1"),
        ("PUT", "aliases/prod/shadow", {"version": 1, "share": 0.5}, "tone/1"),
        ("POST", "aliases/prod/rollback", None, "tone"),
        ("POST", "preload", None, "tone/1"),
        ("POST", "pin", None, "tone/1"),
        ("POST", "unpin", None, "tone"),
        ("POST", "evict?version=1", None, "tone"),
    ],
)
async def test_an_operators_event_names_the_task_after_any_outcome(
    client: httpx.AsyncClient, verb: str, path: str, body: object, task: str
) -> None:
    with logged_events() as events:
        await client.request(verb, f"/v1/tasks/tone/{path}", json=body)
        await client.request(verb, f"/v1/tasks/absent/{path}", json=body)
        event, absent = events.named("request")

    assert event["task"] == task
    assert "task" not in absent


async def test_a_refusal_is_an_event_too(client: httpx.AsyncClient) -> None:
    with logged_events() as events:
        await client.post("/v1/tasks/absent/predict", json={"inputs": "x"})
        await client.get("/nowhere")
    found = [(event["route"], event["status"]) for event in events.named("request")]
    assert found == [("/v1/tasks/{task}/predict", 404), ("none", 404)]


async def test_probes_are_no_events_unless_one_debugs(client: httpx.AsyncClient) -> None:
    for level, expected in ((logging.INFO, 0), (logging.DEBUG, 2)):
        with logged_events(level) as events:
            await client.get("/readyz")
            await client.get("/metrics")
        assert len(events.named("request")) == expected


async def test_events_of_requests_can_be_turned_off(backbone: Backbone, registry: Registry) -> None:
    settings = make_settings(access_log=False)
    async with running_client(backbone, registry, settings) as client:
        with logged_events() as events:
            await client.post(PREDICT, json={"inputs": "x"})
        assert events.named("request") == []
