"""Objectives with one encoding per text: targets, losses, scores.

The loss from a teacher: Hinton, Vinyals and Dean 2015, sec. 2.
"""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from doubles.backbones import tiny_backbone
from nunatak_training.data import Example, ExampleSet, Label, LabelSet, Relevance, TaskData
from nunatak_training.kinds import Metric, TaskKind
from nunatak_training.objectives import objective_of
from nunatak_training.objectives.texts import LABEL_SHARE

TOKENIZER = tiny_backbone(num_layers=1).tokenizer


def task(kind: TaskKind, *given: Label, labels: tuple[str, ...] = ()) -> TaskData:
    examples = ExampleSet(examples=tuple(Example(text="x", label=label) for label in given))
    return TaskData(name="toy", kind=kind, train=examples, dev=examples, labels=labels)


def ranked(*grades: float) -> ExampleSet:
    """One document of each grade, all of the same query."""
    labels = [Relevance(grade=grade, group="q") for grade in grades]
    return ExampleSet(examples=tuple(Example(text="x", label=label) for label in labels))


def scores(
    data: TaskData, *logits: list[float], positive: str | None = None
) -> dict[Metric, float]:
    """All scores of the dev examples, given the logits of each."""
    objective = objective_of(data, positive_label=positive)
    encoded = objective.encode(data.dev, TOKENIZER, max_length=16)
    found = objective.statistics(data.dev, encoded, [torch.tensor(row) for row in logits])
    return {metric: found.value(metric) for metric in found.by_metric}


def targets(data: TaskData) -> list[list[float]]:
    encoded = objective_of(data).encode(data.train, TOKENIZER, max_length=16)
    return [[float(value) for value in target.flatten()] for target in encoded.targets]


def loss(data: TaskData, *logits: list[float]) -> float:
    objective = objective_of(data)
    encoded = objective.encode(data.train, TOKENIZER, max_length=16)
    return objective.loss([torch.tensor(row) for row in logits], encoded.targets).item()


def test_labels_apply_from_one_half_up() -> None:
    both, none = LabelSet(names=("a", "b")), LabelSet(names=())
    data = task(TaskKind.MULTI_LABEL, both, none, both, labels=("a", "b"))

    found = scores(data, [0.0, 9.0], [-0.1, -9.0], [1.0, -1.0], positive="b")

    assert targets(data) == [[1, 1], [0, 0], [1, 1]]
    assert found == pytest.approx(
        {
            Metric.F1_MICRO: 2 * 3 / (4 + 3),
            Metric.F1_MACRO: (1 + 2 / 3) / 2,
            Metric.F1: 2 / 3,
            Metric.ACCURACY: 2 / 3,
        }
    )


def test_values_are_learnt_in_standard_deviations_and_served_as_they_are() -> None:
    data = task(TaskKind.REGRESSION, 1000.0, 3000.0, labels=("value",))
    weight, bias = torch.tensor([[0.5, 0.25]]), torch.tensor([0.1])
    features = torch.tensor([[1.0, 2.0]])

    finished = objective_of(data).finished({"head.output.weight": weight, "head.output.bias": bias})

    learnt: Tensor = features @ weight.T + bias
    served = features @ finished["head.output.weight"].T + finished["head.output.bias"]
    assert targets(data) == [[-1.0], [1.0]]
    assert loss(data, [-1.0], [1.0]) == 0.0
    torch.testing.assert_close(served, 2000 + 1000 * learnt)


def test_grades_are_scaled_to_probabilities() -> None:
    grades = [Relevance(grade=grade, group="q") for grade in (1.0, 2.0, 5.0)]

    assert targets(task(TaskKind.RANKING, *grades)) == [[0.0], [0.25], [1.0]]


@pytest.mark.parametrize("train", [(1.0, 2.0, 3.0), (2.0, 3.0), (0.0, 3.0), (-2.0, 4.0)])
def test_ranking_scores_are_of_dev_grades_and_not_of_those_trained_on(
    train: tuple[float, ...],
) -> None:
    data = TaskData(
        name="toy",
        kind=TaskKind.RANKING,
        train=ranked(*train),
        dev=ranked(0.0, -1.0, 1.0, 3.0),
        labels=(),
    )

    found = scores(data, [4.0], [3.0], [2.0], [1.0])

    gained, ideal = 1 / math.log2(4) + 3 / math.log2(5), 3 + 1 / math.log2(3)
    assert found == pytest.approx({Metric.MRR: 1 / 3, Metric.NDCG: gained / ideal})


LABELS = ("a", "b", "c")
SAID = {
    TaskKind.SINGLE_LABEL: torch.tensor([[0.7, 0.2, 0.1], [0.0, 1.0, 0.0], [0.3, 0.3, 0.4]]),
    TaskKind.MULTI_LABEL: torch.tensor([[0.7, 0.9, 0.1], [0.0, 1.0, 0.5], [0.3, 0.3, 0.4]]),
}
OWN: dict[TaskKind, tuple[Label, ...]] = {
    TaskKind.SINGLE_LABEL: ("a", "c", "b"),
    TaskKind.MULTI_LABEL: (
        LabelSet(names=("a",)), LabelSet(names=()), LabelSet(names=("a", "c")),
    ),
}  # fmt: skip
KINDS = list(SAID)


def taught(kind: TaskKind, shares: Tensor, *, has_label: bool) -> TaskData:
    examples = ExampleSet(
        examples=tuple(
            Example(
                text="x",
                label=label,
                shares=tuple(zip(LABELS, map(float, row), strict=True)),
                has_label=has_label,
            )
            for label, row in zip(OWN[kind], shares, strict=True)
        )
    )
    return TaskData(name="toy", kind=kind, train=examples, dev=examples, labels=LABELS)


def taught_loss(data: TaskData, logits: Tensor, temperature: float = 1.0) -> Tensor:
    objective = objective_of(data, temperature=temperature)
    encoded = objective.encode(data.train, TOKENIZER, max_length=16)
    return objective.loss(list(logits), encoded.targets)


def expected(kind: TaskKind, logits: Tensor, said: Tensor, own: Tensor, t: float) -> Tensor:
    """The sum of both terms, written out for each example."""
    total = torch.tensor(0.0)
    for row, share, label in zip(logits, said, own, strict=True):
        if kind is TaskKind.SINGLE_LABEL:
            soft = share ** (1 / t) / (share ** (1 / t)).sum()
            first = -(soft * torch.log_softmax(row / t, 0)).sum()
            second = -(label * torch.log_softmax(row, 0)).sum()
        else:
            yes, no = share ** (1 / t), (1 - share) ** (1 / t)
            soft = yes / (yes + no)
            first = functional.binary_cross_entropy(torch.sigmoid(row / t), soft)
            second = functional.binary_cross_entropy(torch.sigmoid(row), label)
        total = total + (1 - LABEL_SHARE) * t * t * first + LABEL_SHARE * second
    return total / len(logits)


def hard(kind: TaskKind) -> Tensor:
    if kind is TaskKind.SINGLE_LABEL:
        return functional.one_hot(torch.tensor([0, 2, 1]), 3).float()
    return torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 1.0]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
@pytest.mark.parametrize("has_label", [True, False], ids=["labelled", "unlabelled"])
def test_the_loss_is_that_of_the_paper(
    kind: TaskKind, temperature: float, *, has_label: bool
) -> None:
    logits = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    own = hard(kind) if has_label else SAID[kind]

    found = taught_loss(taught(kind, SAID[kind], has_label=has_label), logits, temperature)

    torch.testing.assert_close(found, expected(kind, logits, SAID[kind], own, temperature))


@pytest.mark.parametrize("kind", KINDS)
def test_a_teacher_that_is_sure_of_the_labels_teaches_like_the_labels(kind: TaskKind) -> None:
    data = taught(kind, hard(kind), has_label=True)
    plain = ExampleSet(examples=tuple(replace(it, shares=()) for it in data.train.examples))
    logits = torch.randn(3, 3, generator=torch.Generator().manual_seed(2))

    torch.testing.assert_close(
        taught_loss(data, logits), taught_loss(replace(data, train=plain), logits)
    )


def test_a_value_is_learnt_from_teacher_and_label_in_their_shares() -> None:
    labels, said = (0.0, 2.0), (1.0, 2.0)
    examples = ExampleSet(
        examples=tuple(
            Example(text="x", label=own, shares=(("value", value),))
            for own, value in zip(labels, said, strict=True)
        )
    )
    data = TaskData(
        name="toy", kind=TaskKind.REGRESSION, train=examples, dev=examples, labels=("value",)
    )

    encoded = objective_of(data).encode(examples, TOKENIZER, max_length=16)

    # Standardised by the mean 1 and the deviation 1 of the labels.
    assert [it.item() for it in encoded.targets] == pytest.approx([-LABEL_SHARE, 1.0])
