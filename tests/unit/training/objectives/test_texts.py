"""Objectives with one encoding per text: targets, losses, scores."""

import math

import pytest
import torch
from torch import Tensor

from doubles.backbones import tiny_backbone
from nunatak_training.data import Example, ExampleSet, Label, LabelSet, Relevance, TaskData
from nunatak_training.kinds import Metric, TaskKind
from nunatak_training.objectives import objective_of

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


def test_each_label_counts_alike_in_the_loss_of_several() -> None:
    data = task(TaskKind.MULTI_LABEL, LabelSet(names=("a",)), labels=("a", "b"))

    assert loss(data, [0.0, 0.0]) == pytest.approx(math.log(2))
    assert loss(data, [9.0, -9.0]) < 0.001


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


def test_groups_are_ranked_apart_and_those_without_relevance_do_not_count() -> None:
    labels = [
        Relevance(grade=0.0, group="p"),
        Relevance(grade=1.0, group="q"),
        Relevance(grade=1.0, group="p"),
        Relevance(grade=0.0, group="none"),
        Relevance(grade=0.0, group="q"),
    ]

    found = scores(task(TaskKind.RANKING, *labels), [5.0], [2.0], [4.0], [9.0], [1.0])

    assert found == pytest.approx(
        {Metric.MRR: (1 / 2 + 1) / 2, Metric.NDCG: (1 / math.log2(3) + 1) / 2}
    )


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
