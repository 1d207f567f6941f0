"""A registry is restored from a backup while a real server answers: later versions are gone."""

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx

from doubles.restores import (
    NOTICED_WITHIN_S,
    NUM_CALLERS,
    SEEDS,
    FileSite,
    Seen,
    call,
    oracle,
    stale,
    watch,
)
from doubles.serving import make_settings, running_server
from doubles.tasks import publish_tiny_task
from nunatak_model import Backbone
from nunatak_registry import Registry

NEVER_MS = 600_000


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


async def restore_under_load(
    address: str, site: FileSite, backbone: Backbone
) -> tuple[list[Seen], float, float]:
    """Restore, publish the lost number with other content; return the answers and both times."""
    seen, expected = list[Seen](), oracle(backbone)
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:
        callers = [asyncio.create_task(call(client, expected, seen)) for _ in range(NUM_CALLERS)]

        await watch(callers, seen, time.monotonic())
        await asyncio.to_thread(site.restore, "early")
        restored_at = time.monotonic()
        await watch(callers, seen, restored_at + NOTICED_WITHIN_S)
        with Registry.open(site.location) as other:
            publish_tiny_task(other, backbone, seed=SEEDS["new"])
            other.promote("tone", "prod", 2)
        promoted_at = time.monotonic()
        await watch(callers, seen, promoted_at + NOTICED_WITHIN_S)
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
