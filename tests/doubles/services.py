"""A prediction service on an engine without a model, and requests and versions for it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from doubles.drafts import DRAFT_BACKBONE
from doubles.engines import Withdrawing
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
from nunatak_server.errors import TaskUnhealthyError
from nunatak_server.predict.ask import RowSink
from nunatak_server.predict.service import PredictionService
from nunatak_server.predict.types import Handling, PredictionRequest, Predictions
from nunatak_server.residency.residency import Residency
from nunatak_server.rollouts.rollouts import Rollouts
from nunatak_server.scheduler.admission import Admission, Readiness, State
from nunatak_server.scheduler.batch_time import BatchTimeModel
from nunatak_server.scheduler.rows import PendingRow, RowAnswer
from nunatak_server.scheduler.turns import Turns
from nunatak_server.settings import ServerSettings
from nunatak_server.telemetry.metrics import Metrics
from nunatak_server.tokenization import Tokenization

LOGITS = [0.0, 1.0]
OWN = TaskReference(task="tone")
SETTINGS = make_settings(
    max_inputs=8, max_documents=16, max_tasks_per_request=8, max_text_chars=100
)


class FakeEngine(Withdrawing):
    """Answers at once, with a failure for chosen tasks; or never."""

    def __init__(self, *, sick: frozenset[str] = frozenset()) -> None:
        self.sick = sick
        self.is_silent = False
        self.rows: list[PendingRow] = []
        self.submissions: list[set[str]] = []
        self.sizes: list[int] = []
        self.has_rows = asyncio.Event()

    def submit(self, rows: Sequence[PendingRow]) -> None:
        self.rows.extend(rows)
        self.submissions.append({row.task for row in rows})
        self.sizes.append(len(rows))
        self.has_rows.set()
        for index, row in enumerate(() if self.is_silent else rows):
            if row.task in self.sick:
                row.future.set_result(TaskUnhealthyError(row.task, row.version, "is sick"))
            else:
                answer = RowAnswer(
                    logits=LOGITS, queue_s=0.1 * index, compute_s=0.5, batch_rows=len(rows)
                )
                row.future.set_result(answer)


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
    readiness, metrics = Readiness(), Metrics()
    admission = admission or Admission(max_requests=10, max_tokens=1000, max_bytes=1000)
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


def make_bench(
    backbone: Backbone,
    branch: Branch,
    *,
    sick: frozenset[str] = frozenset(),
    time_model: BatchTimeModel | None = None,
    settings: ServerSettings = SETTINGS,
    room_for: int = 100,
    max_tokens: int = 1000,
) -> Bench[FakeEngine]:
    """Return a service on an engine that answers at once."""
    admission = Admission(
        max_requests=10,
        max_tokens=max_tokens,
        max_bytes=1000,
        time_model=lambda: time_model or BatchTimeModel(),
    )
    return make_service(
        backbone,
        FakeStore(branch),
        FakeEngine(sick=sick),
        admission=admission,
        settings=settings,
        room_for=room_for,
    )


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
