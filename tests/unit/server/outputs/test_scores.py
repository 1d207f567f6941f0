"""Laws of scores: of labels, of values and of documents."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nunatak_contract.enums import FunctionToApply, Pooling, ProblemType
from nunatak_contract.heads import HeadRecord
from nunatak_contract.requests import Parameters
from nunatak_contract.wire import PredictedValue
from nunatak_server.outputs.scores import LabelScore, default_function, label_scores, rank_documents

finite = st.floats(allow_nan=False, allow_infinity=False)
DOCUMENTS = ("first", "second", "third")


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


def test_none_shows_the_logits_themselves() -> None:
    ranked = scores_of([-1.5, 3.0], Parameters(function_to_apply=FunctionToApply.NONE))

    assert [item["score"] for item in ranked] == [3.0, -1.5]


@pytest.mark.parametrize(("top_k", "count"), [(1, 1), (2, 2), (99, 3), (None, 3)])
def test_top_k_bounds_the_labels(top_k: int | None, count: int) -> None:
    assert len(scores_of([1.0, 2.0, 3.0], Parameters(top_k=top_k))) == count


def test_each_problem_type_has_its_own_function() -> None:
    functions = [default_function(problem_type) for problem_type in ProblemType]

    assert functions == [FunctionToApply.SOFTMAX, FunctionToApply.SIGMOID, FunctionToApply.NONE]


def head_of(problem: ProblemType, *labels: str, **thresholds: float) -> HeadRecord:
    return HeadRecord(
        problem_type=problem,
        labels=labels,
        pooling=Pooling.MEAN,
        dense=False,
        thresholds=thresholds,
    )


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
    head = head_of(ProblemType.MULTI_LABEL, *labels, **limits)

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


def test_the_document_of_the_largest_logit_comes_first() -> None:
    ranked = rank_documents([0.0, 3.0, -1.0], DOCUMENTS, options=Parameters())

    assert [item["index"] for item in ranked] == [1, 0, 2]
    assert [item["score"] for item in ranked] == pytest.approx([0.952574, 0.5, 0.268941], abs=1e-6)
    assert all("document" not in item for item in ranked)


def test_documents_are_repeated_only_if_asked_for() -> None:
    options = Parameters(return_documents=True, top_k=2)

    ranked = rank_documents([0.0, 3.0, -1.0], DOCUMENTS, options=options)

    assert [item.get("document") for item in ranked] == ["second", "first"]


def test_softmax_is_over_the_documents_of_the_query() -> None:
    options = Parameters(function_to_apply=FunctionToApply.SOFTMAX)

    ranked = rank_documents([1.0, 2.0, 3.0], DOCUMENTS, options=options)

    assert sum(item["score"] for item in ranked) == pytest.approx(1)


@pytest.mark.parametrize(
    ("logits", "order"), [([1.0, 1.0, 1.0], [0, 1, 2]), ([50.0, 60.0, 70.0], [2, 1, 0])]
)
def test_documents_are_in_the_order_of_their_logits_and_then_of_the_query(
    logits: list[float], order: list[int]
) -> None:
    ranked = rank_documents(logits, DOCUMENTS, options=Parameters())

    assert [item["index"] for item in ranked] == order
