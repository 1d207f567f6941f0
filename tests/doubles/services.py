"""A prediction service on an engine that answers at once."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from doubles.drafts import DRAFT_BACKBONE
from doubles.engines import Withdrawing
from doubles.serving import FakeStore, make_facts, make_residency, make_settings
from nunatak_model import Backbone, Branch
from nunatak_server.engine.backbones import Backbones
from nunatak_server.errors import TaskUnhealthyError
from nunatak_server.predict.readiness import Readiness, State
from nunatak_server.predict.service import PredictionService, Stages
from nunatak_server.predict.types import (
    Handling,
    PredictionRequest,
    Predictions,
)
from nunatak_server.residency.residency import Residency
from nunatak_server.rollouts.rollouts import Rollouts
from nunatak_server.scheduler.admission import Admission
from nunatak_server.scheduler.batch_time import BatchTimeModel
from nunatak_server.scheduler.rows import PendingRow, RowAnswer
from nunatak_server.scheduler.turns import Turns
from nunatak_server.settings import ServerSettings
from nunatak_server.telemetry.metrics import Metrics
from nunatak_server.tokenization import Tokenization

LOGITS = [0.0, 1.0]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    service: PredictionService
    engine: FakeEngine
    store: FakeStore
    residency: Residency
    admission: Admission
    readiness: Readiness
    metrics: Metrics

    async def ask(self, *tasks: str, deadline_s: float = 60) -> Predictions:
        request = PredictionRequest(
            references=tasks,
            inputs=("a", "b"),
            handling=Handling(default_deadline_s=deadline_s),
        )
        return await self.service.predict(request)


def make_bench(
    backbone: Backbone,
    branch: Branch,
    *,
    sick: frozenset[str] = frozenset(),
    room_for: int = 100,
    time_model: BatchTimeModel | None = None,
    settings: ServerSettings = SETTINGS,
    max_tokens: int = 1000,
) -> Bench:
    store, engine, readiness, metrics = (
        FakeStore(branch),
        FakeEngine(sick=sick),
        Readiness(),
        Metrics(),
    )
    residency = make_residency(store, room_for=room_for)
    admission = Admission(
        max_requests=10,
        max_tokens=max_tokens,
        max_bytes=1000,
        time_model=lambda: time_model or BatchTimeModel(),
    )
    turns = Turns()
    stages = Stages(
        admission=admission,
        facts=make_facts(store),
        residency=residency,
        tokenization=Tokenization({DRAFT_BACKBONE: backbone.tokenizer}, num_threads=1),
        engine=engine,
        rollouts=Rollouts(residency=residency, tolerance=0.1, turns=turns),
        turns=turns,
    )
    service = PredictionService(
        readiness=readiness,
        settings=settings,
        stages=stages,
        metrics=metrics,
        backbones=Backbones(replace(backbone, digest=DRAFT_BACKBONE)),
    )
    readiness.move_to(State.READY)
    return Bench(
        service=service,
        engine=engine,
        store=store,
        residency=residency,
        admission=admission,
        readiness=readiness,
        metrics=metrics,
    )
