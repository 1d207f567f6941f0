"""Engines of fake and tiny models, and rows for them."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from doubles.backbones import tiny_backbone
from doubles.drafts import DRAFT_BACKBONE
from doubles.serving import ManualClock, RecordingObserver
from doubles.tasks import random_branch
from nunatak_contract.errors import NunatakError
from nunatak_contract.methods import HeadOnly
from nunatak_model import BetweenLayers, Branch, Encoding, Row
from nunatak_server.engine.compute import Compute
from nunatak_server.engine.engine import Engine
from nunatak_server.errors import EngineFailedError
from nunatak_server.scheduler.batch_time import BatchLimits
from nunatak_server.scheduler.rows import PendingRow, RowAnswer, RowOutcome, RowSpec

LIMITS = BatchLimits(max_tokens=64, max_rows=4)
POISON = 666
ANSWER = RowAnswer(logits=[0.0, 1.0], queue_s=0.1, compute_s=0.5, batch_rows=2)
_counter = itertools.count()


def answer(*logits: float) -> RowAnswer:
    return replace(ANSWER, logits=list(logits))


class FakeEngine:
    """Gives each row its outcome, at once or on command; without an outcome, a row waits."""

    def __init__(self, outcome: RowOutcome | None = ANSWER) -> None:
        self.outcome = outcome
        self.answers_at_once = True
        self.is_stopped = False
        self.rows: list[PendingRow] = []
        self.withdrawn: list[PendingRow] = []
        self.submissions: list[set[str]] = []
        self.sizes: list[int] = []
        self.has_rows = asyncio.Event()

    def outcome_of(self, row: PendingRow) -> RowOutcome | None:
        del row
        return self.outcome

    def submit(self, rows: Sequence[PendingRow]) -> None:
        if self.is_stopped:
            raise NunatakError("not_ready", reason="the engine has stopped")
        self.rows.extend(rows)
        self.submissions.append({row.task for row in rows})
        self.sizes.append(len(rows))
        self.has_rows.set()
        if self.answers_at_once:
            self._answer(rows)

    def answer(self, *tasks: str) -> None:
        self._answer([row for row in self.rows if row.task in tasks and not row.future.done()])

    def withdraw(self, rows: Sequence[PendingRow]) -> None:
        self.withdrawn += rows
        for row in rows:
            row.future.cancel()

    def _answer(self, rows: Sequence[PendingRow]) -> None:
        for row in rows:
            if (outcome := self.outcome_of(row)) is not None:
                row.future.set_result(outcome)


class FakeCompute:
    """Answers each row with its first token, fails on poisoned rows, and can be blocked."""

    stops_between_layers = False

    def __init__(
        self,
        failure: Exception | None = None,
        *,
        of_poison: float = POISON,
        on_batch: Callable[[int], None] = lambda _num_rows: None,
    ) -> None:
        self.failure = failure
        self.of_poison = of_poison
        self.on_batch = on_batch
        self.batches: list[list[int]] = []
        self.has_begun = threading.Event()
        self.may_finish = threading.Event()
        self.may_finish.set()

    def __call__(
        self, rows: Sequence[Row], *, between_layers: BetweenLayers | None = None
    ) -> list[list[float]]:
        del between_layers
        tokens = [row.encoding.token_ids[0] for row in rows]
        self.batches.append(tokens)
        self.on_batch(len(rows))
        self.has_begun.set()
        self.may_finish.wait(timeout=60)
        if POISON in tokens and self.failure is not None:
            raise self.failure
        return [[self.of_poison if it == POISON else float(it), -1.0] for it in tokens]


class LayeredCompute:
    """Answers each row with its first token; `events` happen between the layers."""

    stops_between_layers = True

    def __init__(
        self, *events: Callable[[], None], on_batch: Callable[[int], None] = lambda _num_rows: None
    ) -> None:
        self.events = list(events)
        self.on_batch = on_batch
        self.ended: list[list[int]] = []

    def __call__(
        self, rows: Sequence[Row], *, between_layers: BetweenLayers | None = None
    ) -> list[list[float]]:
        self.on_batch(len(rows))
        tokens = [row.encoding.token_ids[0] for row in rows]
        if between_layers is not None:
            events, self.events = self.events, []
            for event in events:
                event()
                between_layers()
        self.ended.append(tokens)
        return [[float(token), -1.0] for token in tokens]


def make_engine(
    compute: Compute,
    *,
    fatal: list[EngineFailedError] | None = None,
    clock: ManualClock | None = None,
    observer: RecordingObserver | None = None,
    stopwatch: ManualClock | None = None,
    others: Mapping[str, Compute] | None = None,
) -> Engine:
    return Engine(
        computes={DRAFT_BACKBONE: compute, **(others or {})},
        limits=LIMITS,
        observers=[(observer or RecordingObserver()).observe_batch],
        on_fatal=(fatal if fatal is not None else []).append,
        clock=clock or ManualClock(),
        stopwatch=stopwatch or ManualClock(),
    )


def make_row(
    branch: Branch,
    token: int,
    *,
    task: str = "tone",
    deadline: float = 10,
    backbone: str = DRAFT_BACKBONE,
) -> PendingRow:
    return PendingRow(
        RowSpec(
            encoding=Encoding(token_ids=(token, 2), type_ids=(0, 0)),
            group=next(_counter),
            trunk_tokens=2,
            branch_tokens=0,
            trunk_share=0.0,
            backbone=backbone,
            token_cost=1.0,
        ),
        task=task,
        version=1,
        branch=branch,
        deadline=deadline,
        submitted_at=0.0,
    )


async def all_outcomes(
    engine: Engine, submitted: Sequence[PendingRow], *, of: Sequence[PendingRow] = ()
) -> list[RowOutcome]:
    """Start an engine with these rows; close it after the outcomes of them, or of others."""
    engine.submit(submitted)
    engine.start()
    outcomes = await asyncio.gather(*(row.future for row in of or submitted))
    await engine.aclose()
    return outcomes


def logits_of(outcome: RowOutcome) -> list[float]:
    assert isinstance(outcome, RowAnswer)
    return outcome.logits


def tiny_branch() -> Branch:
    """A head alone on a backbone of one layer."""
    backbone = tiny_backbone(num_layers=1)
    return random_branch(backbone, HeadOnly())
