"""Laws of the loss from a teacher: Hinton, Vinyals and Dean 2015, sec. 2."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from doubles.backbones import tiny_backbone
from nunatak_training.data import Example, ExampleSet, Label, LabelSet, TaskData
from nunatak_training.kinds import TaskKind
from nunatak_training.objectives import objective_of
from nunatak_training.objectives.texts import LABEL_SHARE

TOKENIZER = tiny_backbone(num_layers=1).tokenizer
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


def task(kind: TaskKind, shares: Tensor, *, has_label: bool) -> TaskData:
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


def loss(data: TaskData, logits: Tensor, temperature: float = 1.0) -> Tensor:
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

    found = loss(task(kind, SAID[kind], has_label=has_label), logits, temperature)

    torch.testing.assert_close(found, expected(kind, logits, SAID[kind], own, temperature))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_a_task_that_says_what_its_teacher_says_has_nothing_to_learn(
    kind: TaskKind, temperature: float
) -> None:
    shares = SAID[kind].clamp(0.05, 0.9)
    shares = shares / shares.sum(1, keepdim=True) if kind is TaskKind.SINGLE_LABEL else shares
    same = shares.log() + 7 if kind is TaskKind.SINGLE_LABEL else shares.logit()
    logits = same.clone().requires_grad_()

    found = loss(task(kind, shares, has_label=False), logits, temperature)

    (gradient,) = torch.autograd.grad(found, [logits])
    torch.testing.assert_close(gradient, torch.zeros(3, 3), atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_teacher_that_is_sure_of_the_labels_teaches_like_the_labels(kind: TaskKind) -> None:
    data = task(kind, hard(kind), has_label=True)
    plain = ExampleSet(examples=tuple(replace(it, shares=()) for it in data.train.examples))
    logits = torch.randn(3, 3, generator=torch.Generator().manual_seed(2))

    torch.testing.assert_close(loss(data, logits), loss(replace(data, train=plain), logits))


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
