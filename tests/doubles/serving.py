"""Doubles for the server: a manual clock, observers, a store, and a server on a real port."""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast

import httpx

from doubles.backbones import tiny_backbone
from doubles.drafts import make_draft
from doubles.tasks import publish_tiny_task
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_model import Backbone, Branch
from nunatak_registry import (
    PublishedPolicy,
    Registry,
    StoreUnavailableError,
    TaskNotFoundError,
    Traffic,
)
from nunatak_server.app import create_app
from nunatak_server.catalog.catalog import Catalog, Found, KnownFacts, LookUp
from nunatak_server.engine.backbones import Backbones
from nunatak_server.engine.compute import BatchReport
from nunatak_server.errors import EngineFailedError
from nunatak_server.processes.serving import DrainingServer
from nunatak_server.residency.residency import PATIENCE_S, Loader, Residency
from nunatak_server.settings import ServerSettings
from nunatak_server.telemetry.metrics import Metrics
from nunatak_versions import LoadedTask

if TYPE_CHECKING:
    from nunatak_server.telemetry.spans import SpanTracing

Key = TypeVar("Key")
Fact = TypeVar("Fact")


class ManualClock:
    """A clock that moves when a test moves it."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class RecordingObserver(Metrics):
    """Records every report."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[BatchReport] = []
        self.loads: list[tuple[str, bool]] = []
        self.evicted: list[str] = []
        self.num_waits = 0

    def observe_batch(self, report: BatchReport) -> None:
        self.batches.append(report)

    def observe_load(self, task: str, *, seconds: float, succeeded: bool) -> None:
        assert seconds >= 0
        self.loads.append((task, succeeded))

    def observe_load_wait(self, seconds: float) -> None:
        assert seconds >= 0
        self.num_waits += 1

    def count_task(self, name: str, task: str | None, *labels: str, by: float = 1) -> None:
        super().count_task(name, task, *labels, by=by)
        if name == "evictions" and task:
            self.evicted.append(task)


class FakeStore:
    """Resolves and loads from memory. Both can be blocked, and loads can fail."""

    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        self.branches: dict[str, Branch] = {}
        """The branches of versions with their own branch."""
        self.sizes: dict[str, int] = {}
        """Sizes of tasks in memory, in branches, if other than one."""
        self.manifests: dict[TaskReference, TaskManifest] = {}
        self.traffic: dict[TaskReference, Traffic] = {}
        self.num_resolved = 0
        self.is_down = False
        self.loaded: list[str] = []
        self.broken: dict[str, Exception] = {}
        self.may_load = threading.Event()
        self.may_load.set()
        self.is_resolving = asyncio.Event()
        self.may_resolve = asyncio.Event()
        self.may_resolve.set()
        self.residencies: list[Residency] = []
        """What holds versions of this store in memory."""

    def add(self, task: str, version: int = 1, *, seed: int | None = None) -> TaskReference:
        """Add a version with the seed's content. An existing number is replaced."""
        draft, _ = make_draft(task=task, seed=version if seed is None else seed)
        stored = TaskManifest(**draft.model_dump(), version=version)
        manifest = stored.model_copy(update={"split_depth": self.branch.split_depth})
        reference = TaskReference(task=task)
        self.manifests[reference] = manifest
        self.manifests[TaskReference(task=task, version=version)] = manifest
        return reference

    async def resolve(self, reference: TaskReference) -> Traffic:
        self.num_resolved += 1
        if self.is_down:
            raise StoreUnavailableError("the index is gone")
        found = self.manifests.get(reference)
        self.is_resolving.set()
        await self.may_resolve.wait()
        if found is None:
            raise TaskNotFoundError(reference.task)
        return self.traffic.get(reference, Traffic(manifest=found))

    def size_of(self, manifest: TaskManifest) -> int:
        branch = self.branches.get(manifest.reference, self.branch)
        return self.sizes.get(manifest.task, 1) * branch.num_bytes

    def load(self, manifest: TaskManifest) -> LoadedTask:
        self.may_load.wait(timeout=60)
        self.loaded.append(manifest.reference)
        if manifest.reference in self.broken:
            raise self.broken[manifest.reference]
        branch = self.branches.get(manifest.reference, self.branch)
        return LoadedTask(manifest=manifest, branch=branch, num_bytes=self.size_of(manifest))


def make_facts(
    store: FakeStore,
    *,
    traffic: LookUp[TaskReference, Traffic] | None = None,
    policy: Callable[[str], Awaitable[PublishedPolicy]] | None = None,
    names: Callable[[str], Awaitable[tuple[str, ...]]] | None = None,
    on_move: Callable[[str], None] = lambda _: None,
    max_known: int = 100,
) -> KnownFacts:
    """Return what a process remembers of the store."""
    catalog = SimpleNamespace(
        traffic=traffic or one_by_one(store.resolve),
        policies=one_by_one(policy or no_fact),
        cards=one_by_one(no_fact),
        names=one_by_one(names or no_fact),
    )
    return KnownFacts(cast("Catalog", catalog), on_move=on_move, max_known=max_known)


def one_by_one(look_up: Callable[[Key], Awaitable[Fact]]) -> LookUp[Key, Fact]:
    """Return a look-up of many facts for any caller."""

    async def found(keys: Collection[Key], _caller: str | None) -> Found[Key, Fact]:
        facts = dict[Key, Fact | NunatakError]()
        for key in keys:
            try:
                facts[key] = await look_up(key)
            except StoreUnavailableError:
                raise
            except NunatakError as error:
                facts[key] = error
        return facts

    return found


async def no_fact(key: object) -> NoReturn:
    raise NunatakError("policy_not_found", policy=str(key))


def make_residency(
    store: FakeStore,
    *,
    clock: ManualClock | None = None,
    observer: RecordingObserver | None = None,
    room_for: int = 100,
    patience_s: float = PATIENCE_S,
    fatal: list[EngineFailedError] | None = None,
) -> Residency:
    """Return a residency with room for `room_for` versions of the store, of one branch each."""
    residency = Residency(
        loader=Loader(
            load=store.load,
            size_of=store.size_of,
            num_threads=2,
            on_fatal=(fatal if fatal is not None else []).append,
            patience_s=patience_s,
        ),
        budget_bytes=room_for * store.branch.num_bytes,
        metrics=observer or RecordingObserver(),
        clock=clock or ManualClock(),
    )
    store.residencies.append(residency)
    return residency


_SETTINGS: Final[dict[str, ServerSettings]] = {}
"""Settings that were read before. Settings are frozen, and reading them takes milliseconds."""


def make_settings(**changes: object) -> ServerSettings:
    """Return settings that read nothing from this machine."""
    values: dict[str, object] = {"registry": "unused", "port": 0, "registry_poll_ms": 20, **changes}
    variables = [it for it in os.environ.items() if it[0].startswith("NUNATAK_")]
    key = repr((sorted(values.items()), sorted(variables)))
    if key not in _SETTINGS:
        _SETTINGS[key] = ServerSettings.model_validate(values)
    return _SETTINGS[key]


@contextlib.asynccontextmanager
async def running_client(
    backbone: Backbone,
    registry: Registry,
    settings: ServerSettings | None = None,
    **options: Any,  # noqa: ANN401 - of `running_transport`
) -> AsyncGenerator[httpx.AsyncClient]:
    """Run the real application in this event loop, without sockets."""
    async with (
        running_transport(backbone, registry, settings, **options) as transport,
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
    ):
        yield client


@contextlib.asynccontextmanager
async def running_transport(
    backbone: Backbone,
    registry: Registry,
    settings: ServerSettings | None = None,
    *,
    others: Sequence[Backbone] = (),
    tracing: "SpanTracing | None" = None,
) -> AsyncGenerator[httpx.ASGITransport]:
    """Run the real application; yield its transport, which works even after the end."""
    app = create_app(
        settings or make_settings(),
        backbones=Backbones(backbone, others),
        registry=registry,
        tracing=tracing,
    )
    async with app.router.lifespan_context(app):
        yield httpx.ASGITransport(app)


@contextlib.contextmanager
def running_server(
    backbone: Backbone,
    registry: Registry,
    settings: ServerSettings | None = None,
    *,
    others: Sequence[Backbone] = (),
) -> Generator[str]:
    """Run the real server on a free port in a thread; yields its address."""
    address: Future[str] = Future()
    server = DrainingServer(
        settings or make_settings(),
        backbones=Backbones(backbone, others),
        registry=registry,
        announce=address.set_result,
    )
    thread = threading.Thread(target=server.run, name="test-server")
    thread.start()
    try:
        yield address.result(timeout=60)
    finally:
        server.should_exit = True
        thread.join()
        for handler in logging.getLogger("nunatak_server").handlers:
            # Flushed as at the end of a process, so that one test's log lines do not appear in
            # another.
            handler.flush()


@contextlib.contextmanager
def serving_tone(
    folder: Path, settings: ServerSettings | None = None, *, backbone: Backbone | None = None
) -> Generator[str]:
    """Run the real server on a new registry with the tiny task `tone`; yields its address."""
    backbone = backbone or tiny_backbone()
    with Registry.open(folder) as registry:
        publish_tiny_task(registry, backbone)
        with running_server(backbone, registry, settings) as address:
            yield address
