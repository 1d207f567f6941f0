"""A shadow is compared with the answering version, and no answer waits for it."""

from typing import Any

import pytest

from doubles.engines import ANSWER, FakeEngine
from doubles.leases import until
from doubles.services import Bench, add_versions, ask_for, make_service
from doubles.serving import FakeStore, ManualClock
from nunatak_contract.enums import HeadKind, Pooling, ProblemType
from nunatak_contract.heads import HeadRecord
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.methods import TopK
from nunatak_model import Backbone
from nunatak_server.errors import DeadlineExceededError, OutOfMemoryError, TaskUnhealthyError
from nunatak_server.outputs.entities import AnswerScore, Entity, TokenEntity
from nunatak_server.outputs.outputs import DocumentScore, LabelScore, Output
from nunatak_server.rollouts.rollouts import (
    DRIFT_BOUNDS,
    MAX_PAIRS,
    PAUSE_S,
    Comparison,
    ShadowComparison,
    compare_outputs,
)
from nunatak_server.scheduler.rows import PendingRow, RowOutcome

SICK = TaskUnhealthyError("tone", 2, "is sick")
Pair = tuple[TaskManifest, TaskManifest]


class ScriptedEngine(FakeEngine):
    """Answers callers at once, and shadows with the given answer; None: never."""

    def outcome_of(self, row: PendingRow) -> RowOutcome | None:
        return self.outcome if row.is_shadow else ANSWER

    @property
    def shadows(self) -> list[PendingRow]:
        return [row for row in self.rows if row.is_shadow]


async def load(bench: Bench[Any], *manifests: TaskManifest) -> None:
    for manifest in manifests:
        await bench.residency.preload(manifest)


async def settled_report(bench: Bench[Any], pair: Pair) -> ShadowComparison:
    """Return the report once it has counts."""
    await until(lambda: bench.rollouts.report(*pair) != ShadowComparison())
    return bench.rollouts.report(*pair)


def head(kind: HeadKind, problem: ProblemType | None = None) -> HeadRecord:
    labels = {HeadKind.QUESTION_ANSWERING: (), HeadKind.RANKING: ()}.get(
        kind, ("value",) if problem is ProblemType.REGRESSION else ("a", "b")
    )
    return HeadRecord(
        kind=kind,
        problem_type=problem,
        labels=labels,
        pooling=None if kind.reads_tokens else Pooling.MEAN,
        dense=False,
    )


def labels(**scores: float) -> Output:
    found = [LabelScore(label=label, score=score) for label, score in scores.items()]
    return sorted(found, key=lambda item: -item["score"])


def token(entity: str, start: int, score: float = 0.9) -> Entity:
    return TokenEntity(entity=entity, score=score, index=1, word="x", start=start, end=start + 1)


async def asked(
    backbone: Backbone,
    store: FakeStore,
    shadow: RowOutcome | None,
    *,
    clock: ManualClock | None = None,
) -> tuple[Bench[ScriptedEngine], Pair]:
    """A service that was asked once, with version 2 as the shadow of version 1."""
    pair = add_versions(store, shadow=1.0)
    bench = make_service(backbone, store, ScriptedEngine(shadow), clock=clock)
    await load(bench, *pair)
    await bench.service.predict(ask_for("tone"))
    return bench, pair


async def test_an_answer_does_not_wait_for_its_shadow(backbone: Backbone, store: FakeStore) -> None:
    bench, _ = await asked(backbone, store, None)

    assert [row.future.done() for row in bench.engine.shadows] == [False, False]
    await bench.rollouts.aclose()
    assert all(row.is_cancelled for row in bench.engine.shadows)
    # The shadow's lease has ended, so its version may be evicted.
    assert bench.residency.evict("tone") == (1, 2)


@pytest.mark.parametrize(
    ("outcome", "counts"),
    [
        (ANSWER, (2, 0, 0)),
        (SICK, (0, 2, 0)),
        (OutOfMemoryError(), (0, 0, 2)),
        (DeadlineExceededError(), (0, 0, 2)),
    ],
    ids=["answered", "failed", "without-memory", "dropped"],
)
async def test_each_input_is_compared_failed_or_dropped(
    backbone: Backbone, store: FakeStore, outcome: RowOutcome, counts: tuple[int, int, int]
) -> None:
    bench, pair = await asked(backbone, store, outcome)

    report = await settled_report(bench, pair)
    assert (report.compared, report.errors, report.dropped) == counts
    assert report.agreement == (1.0 if report.compared else None)


async def test_a_shadow_that_failed_is_left_alone_for_a_while(
    backbone: Backbone, store: FakeStore
) -> None:
    clock = ManualClock()
    bench, pair = await asked(backbone, store, SICK, clock=clock)
    await settled_report(bench, pair)

    clock.now = PAUSE_S - 1
    await bench.service.predict(ask_for("tone"))
    assert (len(bench.engine.shadows), bench.rollouts.report(*pair).dropped) == (2, 2)

    clock.now = PAUSE_S
    await bench.service.predict(ask_for("tone"))
    assert len(bench.engine.shadows) == 4


async def test_a_shadow_that_is_not_in_memory_is_dropped_and_loaded_meanwhile(
    backbone: Backbone, store: FakeStore
) -> None:
    engine = ScriptedEngine(ANSWER)
    own, candidate = add_versions(store, shadow=1.0)
    bench = make_service(backbone, store, engine)
    await load(bench, own)

    await bench.service.predict(ask_for("tone"))

    assert (engine.shadows, bench.rollouts.report(own, candidate).dropped) == ([], 2)
    await until(lambda: bench.residency.is_resident(candidate))
    await bench.service.predict(ask_for("tone"))
    assert len(engine.shadows) == 2


def test_a_report_is_the_mean_over_what_was_compared() -> None:
    report = ShadowComparison()
    report.add(Comparison(agreement=1.0, drifts=(0.0, 0.1)))
    report.add(Comparison(agreement=0.5, drifts=(0.3, 0.0)))

    assert (report.compared, report.agreement) == (2, 0.75)
    assert report.mean_drift == pytest.approx(0.1)
    assert report.max_drift == 0.3


@pytest.mark.parametrize(
    ("drift", "place"), [(0.0, 0), (0.0005, 1), (0.001, 1), (0.5, 7), (0.51, 8), (1.0, 8), (7.0, 9)]
)
def test_a_drift_is_counted_at_the_first_bound_that_holds_it(drift: float, place: int) -> None:
    report = ShadowComparison()
    report.add(Comparison(agreement=1.0, drifts=(drift,)))

    assert len(report.drift_counts) == len(DRIFT_BOUNDS) + 1
    assert [index for index, count in enumerate(report.drift_counts) if count] == [place]


async def test_each_version_has_a_report_of_its_own_and_the_oldest_of_many_goes_first(
    backbone: Backbone, store: FakeStore
) -> None:
    own, candidate = add_versions(store, shadow=1.0)
    shadows = make_service(backbone, store, ScriptedEngine(None)).rollouts
    candidates = [
        candidate.model_copy(update={"version": 2 + number}) for number in range(MAX_PAIRS + 1)
    ]
    rewritten = candidate.model_copy(update={"task": "tone", "method": TopK(num_layers=2)})

    shadows.drop_shadow(own, candidates[0], num_inputs=1)
    assert shadows.report(own, candidates[0]).dropped == 1
    for other in (candidates[1], rewritten):
        assert shadows.report(own, other) == ShadowComparison()

    for other in candidates:
        shadows.drop_shadow(own, other, num_inputs=1)
    assert shadows.report(own, candidates[0]) == ShadowComparison()
    assert [shadows.report(own, other).dropped for other in candidates[1:]] == [1] * MAX_PAIRS


def span(start: int, score: float = 0.8) -> AnswerScore:
    return AnswerScore(answer="x", score=score, start=start, end=start + 1)


def ranked(*scores: float) -> Output:
    found = [DocumentScore(index=i, score=score) for i, score in enumerate(scores)]
    return sorted(found, key=lambda item: -item["score"])


LABELS = HeadKind.SEQUENCE_CLASSIFICATION
SINGLE, MULTI = head(LABELS, ProblemType.SINGLE_LABEL), head(LABELS, ProblemType.MULTI_LABEL)
VALUE = head(LABELS, ProblemType.REGRESSION)
TOKENS, SPANS = head(HeadKind.TOKEN_CLASSIFICATION), head(HeadKind.QUESTION_ANSWERING)
RANKS = head(HeadKind.RANKING)
AB = labels(a=0.6, b=0.4)
COMPARED: dict[str, tuple[HeadRecord, Output, Output, float, list[float]]] = {
    "same-label": (SINGLE, AB, labels(a=0.9, b=0.1), 1.0, [0.3, 0.3]),
    "other-label": (SINGLE, AB, labels(a=0.4, b=0.6), 0.0, [0.2, 0.2]),
    "unknown-label": (SINGLE, AB, labels(a=0.5, c=0.5), 1.0, [0.1, 0.4, 0.5]),
    "same-labels": (MULTI, labels(a=0.6, b=0.5), labels(a=0.5, b=0.6), 1.0, [0.1, 0.1]),
    "a-label-less": (MULTI, labels(a=0.6, b=0.5), labels(a=0.6, b=0.4), 0.0, [0.0, 0.1]),
    "close-value": (VALUE, labels(value=1.0), labels(score=1.05), 1.0, [0.05]),
    "other-value": (VALUE, labels(value=1.0), labels(value=1.2), 0.0, [0.2]),
    "tokens": (
        TOKENS,
        [token("B", 0), token("O", 2), token("O", 4), token("O", 6)],
        [token("B", 0, 0.7), token("B", 2), token("O", 4)],
        2 / 4,
        [0.0, 0.0, 0.2],
    ),
    "same-span": (SPANS, [span(3)], [span(3, 0.5)], 1.0, [0.3]),
    "other-span": (SPANS, [span(3)], [span(9)], 0.0, [0.0]),
    "no-span-there": (SPANS, [span(3)], [], 0.0, []),
    "no-spans": (SPANS, [], [], 1.0, []),
    "same-first-document": (
        RANKS,
        ranked(0.9, 0.2, 0.1),
        ranked(0.7, 0.1, 0.2),
        1.0,
        [0.1, 0.1, 0.2],
    ),
    "other-first-document": (RANKS, ranked(0.9, 0.2), ranked(0.3, 0.8), 0.0, [0.6, 0.6]),
}


@pytest.mark.parametrize(
    ("record", "output", "shadow", "agreement", "drifts"), COMPARED.values(), ids=COMPARED
)
def test_outputs_agree_by_what_is_chosen_and_drift_score_by_score(
    record: HeadRecord, output: Output, shadow: Output, agreement: float, drifts: list[float]
) -> None:
    found = compare_outputs(record, output, record, shadow, tolerance=0.1)

    assert found.agreement == agreement
    assert sorted(found.drifts) == pytest.approx(drifts)
    assert found.max_drift == pytest.approx(max(drifts, default=0.0))


def test_labels_apply_by_the_thresholds_of_each_version() -> None:
    lower = MULTI.model_copy(update={"thresholds": {"b": 0.4}})
    output, shadow = labels(a=0.6, b=0.5), labels(a=0.6, b=0.4)

    assert compare_outputs(MULTI, output, lower, shadow, tolerance=0.1).agreement == 1.0
