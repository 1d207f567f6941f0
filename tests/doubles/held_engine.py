"""An engine that answers on command, under a service with tasks in memory."""

from collections.abc import Sequence
from typing import Protocol

from doubles.engines import Withdrawing
from doubles.services import Bench, make_service
from doubles.serving import FakeStore
from nunatak_contract.errors import NunatakError
from nunatak_model import Backbone, Branch
from nunatak_server.predict.types import StreamedResult, TaskPrediction
from nunatak_server.scheduler.admission import Admission
from nunatak_server.scheduler.rows import PendingRow, RowAnswer, RowOutcome

ANSWER = RowAnswer(logits=[0.0, 1.0], queue_s=0.1, compute_s=0.2, batch_rows=3)


class HeldEngine(Withdrawing):
    """Answers on command, task by task."""

    def __init__(self) -> None:
        self.rows: list[PendingRow] = []
        self.is_stopped = False
        self.submissions: list[set[str]] = []
        self.answers_at_once = True
        self.outcome: RowOutcome = ANSWER

    def submit(self, rows: Sequence[PendingRow]) -> None:
        if self.is_stopped:
            raise NunatakError("not_ready", reason="the engine has stopped")
        self.submissions.append({row.task for row in rows})
        self.rows.extend(rows)
        if self.answers_at_once:
            self.answer(*{row.task for row in rows})

    def answer(self, *tasks: str) -> None:
        for row in self.rows:
            if row.task in tasks and not row.future.done():
                row.future.set_result(self.outcome)


class Held(Protocol):
    """Makes a service whose hot tasks are in memory; returns it, its store and its engine."""

    async def __call__(
        self, *hot: str, admission: Admission | None = None
    ) -> tuple[Bench[HeldEngine], FakeStore, HeldEngine]: ...


async def make_held_bench(
    backbone: Backbone, branch: Branch, *hot: str, admission: Admission | None = None
) -> tuple[Bench[HeldEngine], FakeStore, HeldEngine]:
    store, engine = FakeStore(branch), HeldEngine()
    bench = make_service(backbone, store, engine, admission=admission)
    for task in hot:
        reference = store.add(task)
        await bench.facts.traffic([reference], "a test")
        await bench.residency.preload(store.manifests[reference])
    return bench, store, engine


def name_of(streamed: StreamedResult) -> str:
    """Return the task that answered, or the code of its failure."""
    result = streamed.result
    return result.task if isinstance(result, TaskPrediction) else f"{result.error.code}"
