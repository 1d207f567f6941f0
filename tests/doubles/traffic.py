"""Doubles for canaries and shadows: a service over a fake store, and aliases with candidates."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from doubles.drafts import DRAFT_BACKBONE
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
from nunatak_model import Backbone
from nunatak_registry import SharedTraffic, Traffic
from nunatak_server.catalog.facts import KnownFacts
from nunatak_server.engine.backbones import Backbones
from nunatak_server.predict.ask import RowSink
from nunatak_server.predict.readiness import Readiness, State
from nunatak_server.predict.service import PredictionService, Stages
from nunatak_server.predict.types import Handling, PredictionRequest
from nunatak_server.residency.residency import Residency
from nunatak_server.rollouts.rollouts import Rollouts
from nunatak_server.scheduler.admission import Admission
from nunatak_server.scheduler.turns import Turns
from nunatak_server.telemetry.metrics import Metrics
from nunatak_server.tokenization import Tokenization

OWN = TaskReference(task="tone")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficBench:
    """A service, and its parts."""

    service: PredictionService
    store: FakeStore
    facts: KnownFacts
    residency: Residency
    rollouts: Rollouts
    admission: Admission
    metrics: Metrics


def make_traffic_bench(
    backbone: Backbone,
    store: FakeStore,
    engine: RowSink,
    *,
    draw: Callable[[], float] = lambda: 0.0,
    clock: ManualClock | None = None,
    admission: Admission | None = None,
    observer: RecordingObserver | None = None,
    room_for: int = 100,
    max_text_chars: int = 100,
) -> TrafficBench:
    """Return a ready service with these random draws, and room for some versions."""
    facts = make_facts(store)
    residency = make_residency(store, observer=observer, room_for=room_for)
    readiness, metrics = Readiness(), Metrics()
    admission = admission or Admission(max_requests=10, max_tokens=1000, max_bytes=1000)
    turns = Turns()
    rollouts = Rollouts(
        residency=residency,
        tolerance=0.1,
        turns=turns,
        draw=draw,
        clock=clock or ManualClock(),
    )
    for collector in rollouts.metrics.collectors():
        metrics.include(collector)
    service = PredictionService(
        readiness=readiness,
        settings=make_settings(
            max_inputs=8, max_documents=16, max_tasks_per_request=8, max_text_chars=max_text_chars
        ),
        stages=Stages(
            admission=admission,
            facts=facts,
            residency=residency,
            tokenization=Tokenization({DRAFT_BACKBONE: backbone.tokenizer}, num_threads=1),
            engine=engine,
            rollouts=rollouts,
            turns=turns,
        ),
        metrics=metrics,
        backbones=Backbones(replace(backbone, digest=DRAFT_BACKBONE)),
    )
    readiness.move_to(State.READY)
    return TrafficBench(
        service=service,
        store=store,
        facts=facts,
        residency=residency,
        rollouts=rollouts,
        admission=admission,
        metrics=metrics,
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


def ask_for(
    *tasks: str, routing_key: str | None = None, deadline_s: float = 60
) -> PredictionRequest:
    """Return a request about two texts."""
    return PredictionRequest(
        references=tasks,
        inputs=("a", "b"),
        handling=Handling(default_deadline_s=deadline_s, routing_key=routing_key),
    )
