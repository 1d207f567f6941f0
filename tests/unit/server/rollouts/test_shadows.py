"""A shadow never changes an answer, and shares its trunk with the answering version."""

from collections.abc import Sequence
from typing import Any

import pytest

from doubles.drafts import DRAFT_BACKBONE
from doubles.engines import Withdrawing
from doubles.leases import until
from doubles.services import Bench, add_versions, ask_for, make_service
from doubles.serving import FakeStore, ManualClock, RecordingObserver
from doubles.tasks import random_parameters, spec_of
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.methods import TopK
from nunatak_model import Backbone, BetweenLayers, Branch, Row, build_branch
from nunatak_server.engine.compute import BatchCompute
from nunatak_server.engine.engine import Engine
from nunatak_server.errors import DeadlineExceededError, OutOfMemoryError, TaskUnhealthyError
from nunatak_server.predict.types import Predictions, TaskPrediction
from nunatak_server.rollouts.comparison import ShadowComparison
from nunatak_server.rollouts.rollouts import PAUSE_S
from nunatak_server.scheduler.batch_time import BatchLimits
from nunatak_server.scheduler.rows import PendingRow, RowAnswer, RowOutcome

LIMITS = BatchLimits(max_tokens=256, max_rows=32)


def make_branch(backbone: Backbone, seed: int) -> Branch:
    spec = spec_of(backbone, TopK(num_layers=1), num_labels=2)
    return build_branch(spec, backbone.config, random_parameters(spec, backbone, seed=seed))


class BreakingCompute:
    """The real forward, which breaks on rows of one branch."""

    stops_between_layers = True

    def __init__(self, backbone: Backbone, broken: Branch | None) -> None:
        self._compute = BatchCompute(backbone)
        self._broken = broken
        self.num_batches = 0

    def __call__(
        self, rows: Sequence[Row], *, between_layers: BetweenLayers | None = None
    ) -> list[list[float]]:
        self.num_batches += 1
        if any(row.branch is self._broken for row in rows):
            raise RuntimeError("this branch cannot be computed")
        return self._compute(rows, between_layers=between_layers)


class ScriptedEngine(Withdrawing):
    """Answers callers at once, and shadows with the given answer; None: never."""

    def __init__(self, shadow: RowOutcome | None) -> None:
        self.shadow = shadow
        self.rows: list[PendingRow] = []

    def submit(self, rows: Sequence[PendingRow]) -> None:
        self.rows.extend(rows)
        for row in rows:
            if not row.is_shadow:
                row.future.set_result(answer(0.0, 1.0))
            elif self.shadow is not None:
                row.future.set_result(self.shadow)

    @property
    def shadows(self) -> list[PendingRow]:
        return [row for row in self.rows if row.is_shadow]


def answer(*logits: float) -> RowAnswer:
    return RowAnswer(logits=list(logits), queue_s=0.0, compute_s=0.0, batch_rows=1)


def scores(prediction: Predictions) -> list[float]:
    (result,) = prediction.results
    assert isinstance(result, TaskPrediction)
    assert result.version == 1
    return [item["score"] for output in result.outputs for item in output]


async def load(bench: Bench[Any], *manifests: TaskManifest) -> None:
    for manifest in manifests:
        await bench.residency.preload(manifest)


async def settled_report(
    bench: Bench[Any], pair: tuple[TaskManifest, TaskManifest]
) -> ShadowComparison:
    """Return the report once it has counts."""
    await until(lambda: bench.rollouts.shadows.report(*pair) != ShadowComparison())
    return bench.rollouts.shadows.report(*pair)


async def ask_once(
    backbone: Backbone, *, shadow: float | None, breaks: bool
) -> tuple[list[float], ShadowComparison, RecordingObserver, BreakingCompute]:
    """Answer one request with the real engine and the real forward."""
    own_branch, other = make_branch(backbone, 0), make_branch(backbone, 1)
    store, observer = FakeStore(own_branch), RecordingObserver()
    pair = add_versions(store, shadow=shadow)
    store.branches[pair[1].reference] = other
    compute = BreakingCompute(backbone, other if breaks else None)
    engine = Engine(
        computes={DRAFT_BACKBONE: compute},
        limits=LIMITS,
        observers=[observer.observe_batch],
        on_fatal=lambda _: None,
    )
    bench = make_service(backbone, store, engine)
    engine.start()
    await load(bench, *pair)
    found = scores(await bench.service.predict(ask_for("tone")))
    report = await settled_report(bench, pair) if shadow else ShadowComparison()
    await bench.rollouts.aclose()
    await engine.aclose()
    await bench.residency.aclose()
    return found, report, observer, compute


async def test_answers_are_bit_equal_with_and_without_a_shadow_that_fails(
    backbone: Backbone,
) -> None:
    alone, _, _, _ = await ask_once(backbone, shadow=None, breaks=False)
    together, report, _, compute = await ask_once(backbone, shadow=1.0, breaks=True)

    assert together == alone
    assert (report.compared, report.errors) == (0, 2)
    # The three cases: with the shadow, without a shadow, and the shadow alone.
    assert compute.num_batches == 3


@pytest.fixture(scope="module")
def branch(backbone: Backbone) -> Branch:
    return make_branch(backbone, 0)


async def test_an_answer_does_not_wait_for_its_shadow(backbone: Backbone, branch: Branch) -> None:
    store, engine = FakeStore(branch), ScriptedEngine(None)
    pair = add_versions(store, shadow=1.0)
    bench = make_service(backbone, store, engine)
    await load(bench, *pair)

    await bench.service.predict(ask_for("tone"))

    assert [row.future.done() for row in engine.shadows] == [False, False]
    await bench.rollouts.aclose()
    assert all(row.is_cancelled for row in engine.shadows)
    # The shadow's lease has ended, so its version may be evicted.
    assert bench.residency.evict("tone") == (1, 2)


@pytest.mark.parametrize(
    ("outcome", "compared", "errors", "dropped"),
    [
        (answer(0.0, 1.0), 2, 0, 0),
        (TaskUnhealthyError("tone", 2, "is sick"), 0, 2, 0),
        (OutOfMemoryError(), 0, 0, 2),
        (DeadlineExceededError(), 0, 0, 2),
    ],
    ids=["answered", "failed", "without-memory", "dropped"],
)
async def test_each_input_is_compared_failed_or_dropped(
    backbone: Backbone,
    branch: Branch,
    outcome: RowOutcome,
    compared: int,
    errors: int,
    dropped: int,
) -> None:
    store = FakeStore(branch)
    pair = add_versions(store, shadow=1.0)
    bench = make_service(backbone, store, ScriptedEngine(outcome))
    await load(bench, *pair)

    await bench.service.predict(ask_for("tone"))

    report = await settled_report(bench, pair)
    assert (report.compared, report.errors, report.dropped) == (compared, errors, dropped)
    assert report.agreement == (1.0 if compared else None)


async def test_a_shadow_that_failed_is_left_alone_for_a_while(
    backbone: Backbone, branch: Branch
) -> None:
    store, clock = FakeStore(branch), ManualClock()
    engine = ScriptedEngine(TaskUnhealthyError("tone", 2, "is sick"))
    pair = add_versions(store, shadow=1.0)
    bench = make_service(backbone, store, engine, clock=clock)
    await load(bench, *pair)
    await bench.service.predict(ask_for("tone"))
    await settled_report(bench, pair)

    clock.now = PAUSE_S - 1
    await bench.service.predict(ask_for("tone"))
    assert (len(engine.shadows), bench.rollouts.shadows.report(*pair).dropped) == (2, 2)

    clock.now = PAUSE_S
    await bench.service.predict(ask_for("tone"))
    assert len(engine.shadows) == 4


async def test_a_shadow_that_is_not_in_memory_is_dropped_and_loaded_meanwhile(
    backbone: Backbone, branch: Branch
) -> None:
    store, engine = FakeStore(branch), ScriptedEngine(answer(0.0, 1.0))
    own, candidate = add_versions(store, shadow=1.0)
    bench = make_service(backbone, store, engine)
    await load(bench, own)

    await bench.service.predict(ask_for("tone"))

    assert (engine.shadows, bench.rollouts.shadows.report(own, candidate).dropped) == ([], 2)
    await until(lambda: bench.residency.is_resident(candidate))
    await bench.service.predict(ask_for("tone"))
    assert len(engine.shadows) == 2
