"""A prediction service on an engine without a model, and requests and versions for it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from doubles.drafts import DRAFT_BACKBONE
from doubles.engines import FakeEngine
from doubles.serving import (
    FakeStore,
    ManualClock,
    RecordingObserver,
    make_facts,
    make_residency,
    make_settings,
)
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_model import Backbone, Branch
from nunatak_registry import SharedTraffic, Traffic
from nunatak_server.catalog.catalog import KnownFacts
from nunatak_server.engine.backbones import Backbones
from nunatak_server.predict.ask import RowSink
from nunatak_server.predict.service import PredictionService
from nunatak_server.predict.types import Handling, PredictionRequest, Predictions
from nunatak_server.residency.residency import Residency
from nunatak_server.rollouts.rollouts import Rollouts
from nunatak_server.scheduler.admission import Admission, Readiness, State
from nunatak_server.scheduler.batch_time import BatchTimeModel
from nunatak_server.scheduler.turns import Turns
from nunatak_server.settings import ServerSettings
from nunatak_server.telemetry.metrics import Metrics
from nunatak_server.tokenization import Tokenization

OWN = TaskReference(task="tone")
SETTINGS = make_settings(
    max_inputs=8, max_documents=16, max_tasks_per_request=8, max_text_chars=100
)


EngineT = TypeVar("EngineT", bound=RowSink)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench(Generic[EngineT]):
    """A service that is ready, and its parts."""

    service: PredictionService
    engine: EngineT
    store: FakeStore
    facts: KnownFacts
    residency: Residency
    rollouts: Rollouts
    admission: Admission
    readiness: Readiness
    metrics: Metrics

    async def ask(self, *tasks: str, deadline_s: float = 60) -> Predictions:
        return await self.service.predict(ask_for(*tasks, deadline_s=deadline_s))


def make_service(
    backbone: Backbone,
    store: FakeStore,
    engine: EngineT,
    *,
    admission: Admission | None = None,
    settings: ServerSettings = SETTINGS,
    draw: Callable[[], float] = lambda: 0.0,
    clock: ManualClock | None = None,
    observer: RecordingObserver | None = None,
    room_for: int = 100,
) -> Bench[EngineT]:
    """Return a service with these random draws, and room for some versions."""
    facts, turns = make_facts(store), Turns()
    residency = make_residency(store, observer=observer, room_for=room_for)
    readiness, metrics, admission = Readiness(), Metrics(), admission or make_admission()
    rollouts = Rollouts(
        residency=residency,
        tolerance=0.1,
        turns=turns,
        metrics=metrics,
        draw=draw,
        clock=clock or ManualClock(),
    )
    service = PredictionService(
        readiness=readiness,
        settings=settings,
        admission=admission,
        facts=facts,
        residency=residency,
        tokenization=Tokenization({DRAFT_BACKBONE: backbone.tokenizer}, num_threads=1),
        engine=engine,
        rollouts=rollouts,
        turns=turns,
        metrics=metrics,
        observers=(metrics.observe_prediction,),
        backbones=Backbones(replace(backbone, digest=DRAFT_BACKBONE)),
    )
    readiness.move_to(State.READY)
    return Bench(
        service=service,
        engine=engine,
        store=store,
        facts=facts,
        residency=residency,
        rollouts=rollouts,
        admission=admission,
        readiness=readiness,
        metrics=metrics,
    )


def make_admission(
    *, max_tokens: int = 1000, time_model: BatchTimeModel | None = None, max_requests: int = 10
) -> Admission:
    return Admission(
        max_requests=max_requests,
        max_tokens=max_tokens,
        max_bytes=1000,
        time_model=lambda: time_model or BatchTimeModel(),
    )


def make_bench(backbone: Backbone, branch: Branch, **options: Any) -> Bench[FakeEngine]:  # noqa: ANN401 - of `make_service`
    """Return a service on an engine that answers at once."""
    return make_service(backbone, FakeStore(branch), FakeEngine(), **options)


class Held(Protocol):
    """Makes a service whose hot tasks are in memory; returns it, its store and its engine."""

    async def __call__(
        self, *hot: str, admission: Admission | None = None
    ) -> tuple[Bench[FakeEngine], FakeStore, FakeEngine]: ...


async def make_held_bench(
    backbone: Backbone, branch: Branch, *hot: str, admission: Admission | None = None
) -> tuple[Bench[FakeEngine], FakeStore, FakeEngine]:
    bench = make_bench(backbone, branch, admission=admission)
    for task in hot:
        reference = bench.store.add(task)
        await bench.facts.traffic([reference], "a test")
        await bench.residency.preload(bench.store.manifests[reference])
    return bench, bench.store, bench.engine


def ask_for(*tasks: str, routing_key: str = "user-1", deadline_s: float = 60) -> PredictionRequest:
    """Return a request about two texts."""
    return PredictionRequest(
        references=tasks,
        inputs=("a", "b"),
        handling=Handling(default_deadline_s=deadline_s, routing_key=routing_key),
    )


def add_versions(
    store: FakeStore, *, canary: float | None = None, shadow: float | None = None
) -> tuple[TaskManifest, TaskManifest]:
    """Let `tone` mean version 1, with version 2 as its candidate; return both."""
    store.add("tone", version=2)
    candidate = store.manifests[OWN]
    store.add("tone", version=1)
    own = store.manifests[OWN]
    store.traffic[OWN] = Traffic(
        manifest=own,
        canary=None if canary is None else SharedTraffic(manifest=candidate, share=canary),
        shadow=None if shadow is None else SharedTraffic(manifest=candidate, share=shadow),
    )
    return own, candidate
