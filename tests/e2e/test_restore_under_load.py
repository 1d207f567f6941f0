"""A registry is restored from a backup while a real server answers: later versions are gone."""

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from doubles.restores import FileSite
from doubles.serving import make_settings, running_server
from doubles.tasks import (
    LABELS,
    TOP_LAYER,
    logits_alone,
    publish_tiny_task,
    random_parameters,
    spec_of,
)
from nunatak_model import Backbone
from nunatak_registry import Registry

TEXT = "where is my parcel?"
SEEDS = {"old": 11, "lost": 22, "new": 33}
NUM_CALLERS = 4
NOTICED_WITHIN_S = 1.0
"""The promise of docs/registry.md."""
WATCHED_S = 0.5
NEVER_MS = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One answer: its time, the version it names, and the version that computed it."""

    asked_at: float
    version: int
    content: str


@contextmanager
def site_under_load(tmp_path: Path, backbone: Backbone) -> Generator[tuple[FileSite, Registry]]:
    """Yield a registry with two versions, and a backup from before the second."""
    site = FileSite(tmp_path, is_renamed=True)
    with Registry.open(site.location) as registry:
        publish_tiny_task(registry, backbone, seed=SEEDS["old"])
        registry.promote("tone", "prod", 1)
        site.back_up("early")
        publish_tiny_task(registry, backbone, seed=SEEDS["lost"])
        registry.promote("tone", "prod", 2)
        yield site, registry


def oracle(backbone: Backbone) -> dict[str, list[float]]:
    spec = spec_of(backbone, TOP_LAYER, num_labels=len(LABELS))
    return {
        name: logits_alone(backbone, spec, random_parameters(spec, backbone, seed=seed), [TEXT])[0]
        for name, seed in SEEDS.items()
    }


async def call(
    client: httpx.AsyncClient, expected: dict[str, list[float]], seen: list[Seen]
) -> None:
    """Ask until cancelled."""
    body = {"inputs": TEXT, "parameters": {"function_to_apply": "none"}}
    while True:
        asked_at = time.monotonic()
        answer = (await client.post("/v1/tasks/tone/predict", json=body)).raise_for_status()
        found = answer.json()
        assert answer.headers["x-task-version"] == f"tone/{found['version']}"
        scores = {item["label"]: item["score"] for item in found["outputs"]}
        (content,) = (
            name
            for name, logits in expected.items()
            if [scores[label] for label in LABELS] == pytest.approx(logits, abs=1e-4)
        )
        seen.append(Seen(asked_at=asked_at, version=found["version"], content=content))


async def restore_under_load(
    address: str, site: FileSite, backbone: Backbone
) -> tuple[list[Seen], float, float]:
    """Restore, publish the lost number with other content; return the answers and both times."""
    seen, expected = list[Seen](), oracle(backbone)
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:
        callers = [asyncio.create_task(call(client, expected, seen)) for _ in range(NUM_CALLERS)]

        async def watch(after: float) -> None:
            """Wait until requests from well after a moment have answers."""
            async with asyncio.timeout(30):
                while not seen or seen[-1].asked_at < after + WATCHED_S:
                    await asyncio.sleep(0.01)
                    for caller in callers:
                        assert not caller.done(), caller.exception()

        await watch(time.monotonic())
        await asyncio.to_thread(site.restore, "early")
        restored_at = time.monotonic()
        await watch(restored_at + NOTICED_WITHIN_S)
        with Registry.open(site.location) as other:
            publish_tiny_task(other, backbone, seed=SEEDS["new"])
            other.promote("tone", "prod", 2)
        promoted_at = time.monotonic()
        await watch(promoted_at + NOTICED_WITHIN_S)
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
    return seen, restored_at, promoted_at


def serve_and_restore(
    tmp_path: Path, backbone: Backbone, *, poll_ms: int
) -> tuple[list[Seen], float, float]:
    """Run a server with this poll interval, and `restore_under_load`."""
    settings = make_settings(registry_poll_ms=poll_ms)
    with (
        site_under_load(tmp_path, backbone) as (site, registry),
        running_server(backbone, registry, settings) as address,
    ):
        return asyncio.run(restore_under_load(address, site, backbone))


def stale(seen: list[Seen], restored_at: float) -> list[Seen]:
    """Return the answers of versions that the registry did not have at the time of the request."""
    return [
        it for it in seen if it.content == "lost" and it.asked_at > restored_at + NOTICED_WITHIN_S
    ]


def test_no_answer_comes_from_what_a_restored_registry_does_not_name(
    tmp_path: Path, backbone: Backbone
) -> None:
    seen, restored_at, promoted_at = serve_and_restore(tmp_path, backbone, poll_ms=50)

    assert {(it.content, it.version) for it in seen} == {("old", 1), ("lost", 2), ("new", 2)}
    assert stale(seen, restored_at) == []
    last = [it for it in seen if it.asked_at > promoted_at + NOTICED_WITHIN_S]
    assert {it.content for it in last} == {"new"}


def test_a_server_that_does_not_look_would_be_found_out(tmp_path: Path, backbone: Backbone) -> None:
    seen, restored_at, _ = serve_and_restore(tmp_path, backbone, poll_ms=NEVER_MS)

    assert stale(seen, restored_at)
