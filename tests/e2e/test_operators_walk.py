"""An operator's walk with the shipped parts, under load: copy, serve, restart, promote, restore."""

import asyncio
import signal
import ssl
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from doubles.backbones import save_tiny_backbone
from doubles.lifecycles import LIMIT_S
from doubles.object_stores import object_store
from doubles.postgres import PostgresServer
from doubles.processes import ServerProcess, server_process
from doubles.proxies import HOST, NGINX, OPENSSL, free_port, proxy
from doubles.restores import (
    NOTICED_WITHIN_S,
    NUM_CALLERS,
    SEEDS,
    PostgresSite,
    Seen,
    call,
    oracle,
    stale,
    watch,
)
from doubles.tasks import publish_tiny_task
from doubles.terminals import nunatak
from nunatak_model import Backbone, load_backbone
from nunatak_registry import Registry

PAUSE_S = 0.05
"""Between the requests of a caller. Without a pause, the callers take the starts' CPU time."""

pytestmark = pytest.mark.skipif(
    NGINX is None or OPENSSL is None, reason="nginx or openssl is not installed (apt-get install)"
)


@dataclass(kw_only=True)
class Fleet:
    """Two server processes on one registry, at ports that a proxy knows."""

    location: str
    backbone: Path
    ports: tuple[int, int] = field(default_factory=lambda: (free_port(), free_port()))
    stack: ExitStack = field(default_factory=ExitStack)
    running: dict[int, ServerProcess] = field(default_factory=dict[int, ServerProcess])

    def start(self, port: int) -> None:
        """Start a process, and wait until it is ready."""
        self.running[port] = self.stack.enter_context(
            server_process(
                registry=self.location, backbone=self.backbone, port=port, access_log=False
            )
        )

    def restart(self, port: int) -> None:
        """Ask a process to end, wait for its end, and start another one at its port."""
        process = self.running[port]
        process.send(signal.SIGTERM)
        assert process.wait(timeout=LIMIT_S) == -signal.SIGTERM
        self.start(port)


@contextmanager
def running_fleet(location: str, backbone: Path) -> Generator[Fleet]:
    """Start both processes at once."""
    fleet = Fleet(location=location, backbone=backbone)
    with fleet.stack:
        with ThreadPoolExecutor() as pool:
            list(pool.map(fleet.start, fleet.ports))
        yield fleet


def publish_and_promote(location: str, backbone: Backbone, content: str) -> None:
    """Publish content under the next number, and let `prod` point to it."""
    with Registry.open(location, create=False) as registry:
        manifest = publish_tiny_task(registry, backbone, seed=SEEDS[content])
        registry.promote("tone", "prod", manifest.version)


async def walk(
    client: httpx.AsyncClient, fleet: Fleet, site: PostgresSite, backbone: Backbone
) -> tuple[list[Seen], float]:
    """Restart, promote and restore while callers ask; return the answers, and when it restored."""
    seen, expected = list[Seen](), oracle(backbone)
    callers = [
        asyncio.create_task(call(client, expected, seen, pause_s=PAUSE_S))
        for _ in range(NUM_CALLERS)
    ]
    await watch(callers, seen, time.monotonic())
    for port in fleet.ports:
        await asyncio.to_thread(fleet.restart, port)
    await asyncio.to_thread(publish_and_promote, site.location, backbone, "lost")
    await watch(callers, seen, time.monotonic() + NOTICED_WITHIN_S)
    await asyncio.to_thread(site.restore, "early")
    restored_at = time.monotonic()
    await watch(callers, seen, restored_at + NOTICED_WITHIN_S)
    await asyncio.to_thread(publish_and_promote, site.location, backbone, "new")
    await watch(callers, seen, time.monotonic() + NOTICED_WITHIN_S)
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    return seen, restored_at


@pytest.mark.slow
def test_an_operators_walk_gives_no_failed_and_no_stale_answer(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny_backbone(tmp_path / "backbone")
    backbone = load_backbone(tmp_path / "backbone")
    publish_to = str(tmp_path / "folder")
    with Registry.open(publish_to):
        publish_and_promote(publish_to, backbone, "old")
    with object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        site = PostgresSite(tmp_path, postgres, blobs=f"s3://{store.create_bucket()}/tasks")
        copied = nunatak("registry", "copy", publish_to, site.location, "--create")
        assert copied.stdout.startswith("tone: copied version 1; 1 event of aliases; ")
        site.back_up("early")
        with (
            running_fleet(site.location, tmp_path / "backbone") as fleet,
            proxy(tmp_path / "nginx", *(f"127.0.0.1:{port}" for port in fleet.ports)) as direct,
        ):
            trusted = ssl.create_default_context(cafile=tmp_path / "nginx" / "tls.crt")

            async def scenario() -> tuple[list[Seen], float]:
                async with httpx.AsyncClient(
                    base_url=direct.base_url,
                    headers={"host": HOST},
                    verify=trusted,
                    timeout=LIMIT_S,
                ) as client:
                    return await walk(client, fleet, site, backbone)

            seen, restored_at = asyncio.run(scenario())
        with Registry.open(site.location, create=False) as registry:
            findings = registry.verify()

    assert {(it.content, it.version) for it in seen} == {("old", 1), ("lost", 2), ("new", 2)}
    assert stale(seen, restored_at) == []
    assert seen[-1].content == "new"
    assert not any(it.kind.is_error for it in findings)
