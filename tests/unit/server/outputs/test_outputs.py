"""Laws of scores, and of outputs that take long: these are made off the event loop."""

import asyncio
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.backbones import tiny_backbone
from doubles.engines import FakeEngine, answer, tiny_branch
from doubles.leases import until
from doubles.services import OWN, Bench, EngineT, add_versions, ask_for, make_service
from doubles.serving import FakeStore
from nunatak_contract.enums import FunctionToApply, HeadKind, Pooling, ProblemType
from nunatak_contract.heads import HeadRecord
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.requests import Input, Parameters, Question
from nunatak_contract.wire import PredictedValue
from nunatak_model import Encoding
from nunatak_registry import SharedTraffic, Traffic
from nunatak_server.errors import DeadlineExceededError
from nunatak_server.outputs.outputs import (
    LabelScore,
    combine_windows,
    label_scores,
    rank_documents,
    softmax,
    work_of,
)
from nunatak_server.predict.types import TaskFailure
from nunatak_server.scheduler import turns
from nunatak_server.scheduler.rows import PendingRow, RowOutcome

QUESTIONS = HeadRecord(
    kind=HeadKind.QUESTION_ANSWERING, problem_type=None, labels=(), pooling=None, dense=False
)
LABELS = tuple(f"label {number}" for number in range(9))
TAGS = QUESTIONS.model_copy(update={"kind": HeadKind.TOKEN_CLASSIFICATION, "labels": LABELS})
CLASSES = HeadRecord(labels=LABELS, pooling=Pooling.MEAN, dense=False)
QUESTION = Question(question="?", context="." * 60)
P = ParamSpec("P")
T = TypeVar("T")
SAFETY = ("benign", "attack", "spam")
DOCUMENTS = ("first", "second", "third")
finite = st.floats(allow_nan=False, allow_infinity=False)


class QuestionEngine(FakeEngine):
    """Answers at once, with the logits of spans."""

    def outcome_of(self, row: PendingRow) -> RowOutcome:
        return answer(*[0.0] * 2 * row.spec.encoding.num_tokens)


class CountingExecutor(ThreadPoolExecutor):
    """Counts the calls off the event loop."""

    num_calls = 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        self.num_calls += 1
        return super().submit(fn, *args, **kwargs)


def options_of(max_tokens: int) -> Parameters:
    return Parameters(max_answer_len=max_tokens)


def read_of(*sizes: int) -> list[tuple[Encoding, ...]]:
    return [(Encoding(token_ids=(1,) * size, type_ids=(0,) * size),) for size in sizes]


async def bench_for(
    monkeypatch: pytest.MonkeyPatch,
    executor: ThreadPoolExecutor,
    engine: EngineT,
    *,
    head: HeadRecord = QUESTIONS,
    max_length: int = 100,
    is_shadowed: bool = False,
) -> tuple[Bench[EngineT], tuple[TaskManifest, TaskManifest]]:
    """A service that makes long outputs on an executor, and two versions in memory."""

    def the_one(*_: object, **__: object) -> ThreadPoolExecutor:
        return executor

    monkeypatch.setattr(turns, "ThreadPoolExecutor", the_one)
    store = FakeStore(tiny_branch())
    bench = make_service(tiny_backbone(num_layers=1), store, engine)
    changes = {"head": head, "max_length": max_length}
    own, shadow = (each.model_copy(update=changes) for each in add_versions(store))
    shared = SharedTraffic(manifest=shadow, share=1.0) if is_shadowed else None
    store.traffic[OWN] = Traffic(manifest=own, shadow=shared)
    for manifest in (own, shadow):
        await bench.residency.preload(manifest)
    return bench, (own, shadow)


async def calls_for(monkeypatch: pytest.MonkeyPatch, *, max_tokens: int, is_shadowed: bool) -> int:
    """Options that move an answer off the loop, for a context of 60 tokens."""
    executor, default = CountingExecutor(max_workers=1), CountingExecutor(max_workers=1)
    asyncio.get_running_loop().set_default_executor(default)
    bench, pair = await bench_for(monkeypatch, executor, QuestionEngine(), is_shadowed=is_shadowed)
    asked = replace(ask_for("tone"), inputs=(QUESTION,), options=options_of(max_tokens))

    await bench.service.predict(asked)
    if is_shadowed:
        await until(lambda: bench.rollouts.report(*pair).compared == 1)
    await bench.rollouts.aclose()
    await bench.residency.aclose()
    # The default executor also parses bodies and renders metrics.
    assert default.num_calls == 0
    return executor.num_calls


def head_of(
    problem: ProblemType,
    *labels: str,
    default: str | None = None,
    thresholds: dict[str, float] | None = None,
) -> HeadRecord:
    return HeadRecord(
        problem_type=problem,
        labels=labels,
        pooling=Pooling.MEAN,
        dense=False,
        default_label=default,
        thresholds=thresholds or {},
    )


class SlowLogit(float):
    """A logit whose first use blocks its thread until the answer is late."""

    gate: threading.Event
    used: list[int]

    def __sub__(self, other: float) -> float:
        self.used.append(0)
        assert self.gate.wait(60)
        return float(self) - other


class SlowEngine(FakeEngine):
    """Answers at once, with a logit in each row that tells of its use."""

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.width = width
        self.gate = threading.Event()
        self.used: list[int] = []

    def outcome_of(self, row: PendingRow) -> RowOutcome:
        slow = SlowLogit(0.0)
        slow.gate, slow.used = self.gate, self.used
        return answer(slow, *[0.0] * (self.width * row.spec.encoding.num_tokens - 1))


@pytest.mark.parametrize(
    ("head", "item"),
    [
        pytest.param(QUESTIONS, Question(question="?", context="." * 90), id="answers"),
        pytest.param(TAGS, "." * 90, id="entities"),
    ],
)
async def test_a_late_answer_ends_with_the_window_that_is_being_read(
    monkeypatch: pytest.MonkeyPatch, head: HeadRecord, item: Input
) -> None:
    executor, engine = ThreadPoolExecutor(1), SlowEngine(width=head.num_outputs)
    bench, _ = await bench_for(monkeypatch, executor, engine, head=head, max_length=20)
    asked = replace(ask_for("tone", deadline_s=0.3), inputs=(item,), options=options_of(60))

    (result,) = (await bench.service.predict(asked)).results
    engine.gate.set()
    await asyncio.to_thread(executor.shutdown)

    assert isinstance(result, TaskFailure)
    assert isinstance(result.error, DeadlineExceededError)
    assert len(engine.rows) > 5
    assert len(engine.used) == 1
    await bench.residency.aclose()


@pytest.mark.parametrize(
    ("max_tokens", "is_shadowed", "calls"),
    [
        pytest.param(1, False, 0, id="short-answers"),
        pytest.param(60, False, 1, id="long-answers"),
        pytest.param(1, True, 1, id="short-answers-and-a-shadow-with-its-own"),
    ],
)
async def test_a_search_among_many_spans_leaves_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, max_tokens: int, calls: int, *, is_shadowed: bool
) -> None:
    found = await calls_for(monkeypatch, max_tokens=max_tokens, is_shadowed=is_shadowed)

    assert found == calls


def test_work_counts_logits_and_checked_spans() -> None:
    any_length = options_of(100)

    assert work_of(CLASSES, read_of(40, 60), options=any_length) == (8 + 9) * 2
    assert work_of(TAGS, read_of(40, 60), options=any_length) == 9 * 100
    assert work_of(QUESTIONS, read_of(40), options=options_of(10)) == 80 + 40 * 10 // 4
    assert work_of(QUESTIONS, read_of(40), options=any_length) == 80 + 40 * 40 // 4


def test_findings_are_ordered_where_their_probabilities_round_to_one() -> None:
    head = head_of(ProblemType.SINGLE_LABEL, *SAFETY, default="benign")
    sure, surer = [-40.0, 40.0, -40.0], [-60.0, 60.0, -60.0]
    assert softmax(sure)[1] == softmax(surer)[1] == 1.0

    assert combine_windows([sure, surer, sure], head) == surer


def test_a_mean_of_probabilities_that_vanish_is_a_number() -> None:
    combined = combine_windows(
        [[2000.0, 0.0, -2000.0], [2000.0, 0.0, 0.0]], head_of(ProblemType.SINGLE_LABEL, *SAFETY)
    )

    assert all(map(math.isfinite, combined))
    assert softmax(list(combined)) == pytest.approx([1.0, 0.0, 0.0])


def scores_of(logits: list[float], options: Parameters) -> list[LabelScore]:
    labels = [f"label-{index}" for index in range(len(logits))]
    shown, _ = label_scores(logits, head_of(ProblemType.SINGLE_LABEL, *labels), options)
    return shown


@given(st.lists(finite, min_size=2, max_size=8))
@settings(derandomize=True)
def test_softmax_gives_a_distribution_best_first_for_any_finite_logits(logits: list[float]) -> None:
    scores = [item["score"] for item in scores_of(logits, Parameters())]

    assert math.isclose(sum(scores), 1.0)
    assert scores == sorted(scores, reverse=True)


@given(finite)
@settings(derandomize=True)
def test_sigmoid_stays_within_its_bounds_for_any_finite_logit(logit: float) -> None:
    (first, _) = scores_of([logit, logit], Parameters(function_to_apply=FunctionToApply.SIGMOID))

    assert 0.0 <= first["score"] <= 1.0


def test_equal_scores_keep_the_order_of_the_labels() -> None:
    ranked = scores_of([1.0, 1.0, 1.0], Parameters())

    assert [item["label"] for item in ranked] == ["label-0", "label-1", "label-2"]


@pytest.mark.parametrize(("top_k", "count"), [(1, 1), (2, 2), (99, 3), (None, 3)])
def test_top_k_bounds_the_labels(top_k: int | None, count: int) -> None:
    assert len(scores_of([1.0, 2.0, 3.0], Parameters(top_k=top_k))) == count


def predicted(head: HeadRecord, logits: list[float], **options: Any) -> PredictedValue:  # noqa: ANN401 - options
    return label_scores(logits, head, Parameters(**options))[1]


def test_one_label_is_predicted_by_the_largest_logit_and_the_first_of_equals() -> None:
    head = head_of(ProblemType.SINGLE_LABEL, "a", "b", "c")

    assert predicted(head, [0.0, 2.0, 1.0]) == "b"
    assert predicted(head, [0.0, 1.0, 1.0]) == "b"


@given(
    st.lists(finite, min_size=3, max_size=3),
    st.lists(st.floats(min_value=0, max_value=1), min_size=3, max_size=3),
)
@settings(derandomize=True)
def test_of_several_labels_those_at_or_above_their_threshold_are_predicted(
    logits: list[float], thresholds: list[float]
) -> None:
    labels = ["a", "b", "c"]
    limits = dict(zip(labels, thresholds, strict=True))
    head = head_of(ProblemType.MULTI_LABEL, *labels, thresholds=limits)

    shown, found = label_scores(logits, head, Parameters())

    assert isinstance(found, tuple)
    assert list(found) == [it["label"] for it in shown if it["score"] >= limits[it["label"]]]
    assert {predicted(head, logits, top_k=1, function_to_apply=it) for it in FunctionToApply} == {
        found
    }


def test_without_thresholds_a_label_is_predicted_from_one_half_and_none_may_be() -> None:
    head = head_of(ProblemType.MULTI_LABEL, "a", "b")

    assert predicted(head, [0.0, 3.0]) == ("b", "a")
    assert predicted(head, [-0.1, -3.0]) == ()


def test_a_regression_predicts_its_value() -> None:
    assert predicted(head_of(ProblemType.REGRESSION, "stars"), [4.25]) == 4.25


def test_softmax_is_over_the_documents_of_the_query() -> None:
    options = Parameters(function_to_apply=FunctionToApply.SOFTMAX)

    ranked = rank_documents([1.0, 2.0, 3.0], DOCUMENTS, options=options)

    assert sum(item["score"] for item in ranked) == pytest.approx(1)


@pytest.mark.parametrize(
    ("logits", "order"),
    [([0.0, 3.0, -1.0], [1, 0, 2]), ([1.0, 1.0, 1.0], [0, 1, 2]), ([50.0, 60.0, 70.0], [2, 1, 0])],
)
def test_documents_are_in_the_order_of_their_logits_and_then_of_the_query(
    logits: list[float], order: list[int]
) -> None:
    ranked = rank_documents(logits, DOCUMENTS, options=Parameters())

    assert [item["index"] for item in ranked] == order
    scores = [1 / (1 + math.exp(-logits[place])) for place in order]
    assert [item["score"] for item in ranked] == pytest.approx(scores)
    assert all("document" not in item for item in ranked)
