"""One answer from several windows: each rule against the same rule in plain loops."""

import math
import random

import pytest

from nunatak_contract.enums import FunctionToApply, HeadKind, Pooling, ProblemType
from nunatak_contract.heads import HeadRecord
from nunatak_server.outputs.outputs import combine_windows
from nunatak_server.outputs.scores import apply_function

LABELS = ("benign", "attack", "spam")


def head_of(
    problem: ProblemType | None, *, labels: tuple[str, ...] = LABELS, default: str | None = None
) -> HeadRecord:
    kind = HeadKind.RANKING if problem is None else HeadKind.SEQUENCE_CLASSIFICATION
    return HeadRecord(
        kind=kind,
        problem_type=problem,
        labels=labels,
        pooling=Pooling.MEAN,
        dense=False,
        default_label=default,
    )


def random_windows(num_labels: int = 3) -> list[list[float]]:
    draw = random.Random(num_labels)
    return [[draw.uniform(-4, 4) for _ in range(num_labels)] for _ in range(7)]


def softmax(logits: list[float]) -> list[float]:
    return apply_function(FunctionToApply.SOFTMAX, logits)


@pytest.mark.parametrize("problem", [*ProblemType, None])
def test_one_window_keeps_its_logits(problem: ProblemType | None) -> None:
    labels = {ProblemType.REGRESSION: ("stars",), None: ()}.get(problem, LABELS)

    assert combine_windows([[0.1, -3.0, 7.0]], head_of(problem, labels=labels)) == [0.1, -3.0, 7.0]


def test_each_of_several_labels_has_its_largest_probability() -> None:
    windows = random_windows()

    combined = combine_windows(windows, head_of(ProblemType.MULTI_LABEL))

    for label in range(3):
        largest = 0.0
        for logits in windows:
            largest = max(largest, 1 / (1 + math.exp(-logits[label])))
        assert 1 / (1 + math.exp(-combined[label])) == pytest.approx(largest)


@pytest.mark.parametrize("default", [0, 1, 2])
def test_with_a_default_label_the_window_with_the_strongest_finding_answers(default: int) -> None:
    windows = random_windows()

    combined = combine_windows(windows, head_of(ProblemType.SINGLE_LABEL, default=LABELS[default]))

    best, strongest = None, -1.0
    for logits in windows:
        for label, probability in enumerate(softmax(logits)):
            if label != default and probability > strongest:
                best, strongest = logits, probability
    assert combined == best


def test_a_finding_is_seen_among_any_number_of_windows_without_one() -> None:
    nothing, attack = [9.0, -9.0], [-2.0, 2.0]
    head = head_of(ProblemType.SINGLE_LABEL, labels=LABELS[:2], default="benign")

    for place in (0, 50, 100):
        windows = [nothing] * 100
        windows.insert(place, attack)
        assert combine_windows(windows, head) == attack
    assert combine_windows([nothing] * 100, head) == nothing


def test_findings_are_ordered_where_their_probabilities_round_to_one() -> None:
    head = head_of(ProblemType.SINGLE_LABEL, default="benign")
    sure, surer = [-40.0, 40.0, -40.0], [-60.0, 60.0, -60.0]
    assert softmax(sure)[1] == softmax(surer)[1] == 1.0

    assert combine_windows([sure, surer, sure], head) == surer


def test_without_a_default_label_the_probabilities_are_averaged() -> None:
    windows = random_windows()

    combined = combine_windows(windows, head_of(ProblemType.SINGLE_LABEL))

    mean = [0.0, 0.0, 0.0]
    for logits in windows:
        for label, probability in enumerate(softmax(logits)):
            mean[label] += probability / len(windows)
    assert softmax(list(combined)) == pytest.approx(mean)


def test_a_mean_of_probabilities_that_vanish_is_a_number() -> None:
    combined = combine_windows(
        [[2000.0, 0.0, -2000.0], [2000.0, 0.0, 0.0]], head_of(ProblemType.SINGLE_LABEL)
    )

    assert all(map(math.isfinite, combined))
    assert softmax(list(combined)) == pytest.approx([1.0, 0.0, 0.0])


def test_values_are_averaged() -> None:
    head = head_of(ProblemType.REGRESSION, labels=("stars",))

    assert combine_windows([[1.0], [2.5], [4.0]], head) == [2.5]


def test_a_document_is_as_good_as_its_best_window() -> None:
    assert combine_windows([[-3.0], [0.5], [0.25]], head_of(None, labels=())) == [0.5]
