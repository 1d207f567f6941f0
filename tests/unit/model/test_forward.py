import random

import pytest
import torch

from doubles.backbones import FAMILIES, Family, encoded, random_text, tiny_backbone
from doubles.tasks import EVERY_FORM, random_branch
from nunatak_contract.enums import Activation, AdapterInput, LinearMap, Norms, Pooling
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, HeadOnly, Lora, Method, TopK
from nunatak_model import (
    Branch,
    BranchSpec,
    HeadSpec,
    Row,
    build_branch,
    forward,
    initial_parameters,
    layer,
)

METHODS: list[Method] = [
    Bottleneck(size=4, reads=AdapterInput.NORMED_SUM, norms=Norms.FROZEN),
    Bottleneck(size=3),
    Bottleneck(size=3, activation=Activation.GELU),
    *EVERY_FORM,
]
BACKBONE = tiny_backbone()


def branch_of(method: Method, seed: int, *, pooling: Pooling = Pooling.MEAN) -> Branch:
    """A branch whose every parameter differs from its initial value."""
    generator = torch.Generator().manual_seed(seed)
    head = HeadSpec(num_labels=2 + seed % 3, pooling=pooling, dense=seed % 2 == 0)
    spec = BranchSpec(method=method, head=head)
    parameters = initial_parameters(spec, BACKBONE, generator=generator)
    for tensor in parameters.values():
        tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.2)
    return build_branch(spec, BACKBONE.config, parameters)


def some_rows(seed: int, count: int) -> list[Row]:
    chance = random.Random(seed)
    branches = [
        branch_of(method, index, pooling=chance.choice(list(Pooling)))
        for index, method in enumerate(METHODS)
    ]
    encodings = [random_text(chance, n) for n in (1, 2, 3, 9, 9, 30, 64)]
    return [
        Row(encoding=chance.choice(encodings), branch=chance.choice(branches)) for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(2))
def test_mixed_batch_equals_each_row_alone(seed: int) -> None:
    rows = some_rows(seed, 40)

    with torch.inference_mode():
        together = forward(BACKBONE, rows)
        alone = [forward(BACKBONE, [row])[0] for row in rows]

    for mixed, single in zip(together, alone, strict=True):
        torch.testing.assert_close(mixed, single, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_run_task_by_task_with_the_results_of_all_at_once(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = tiny_backbone(family=family, num_layers=2)
    methods = HeadOnly(), Lora(rank=2, alpha=2.0, targets=QUERY_AND_VALUE), TopK(num_layers=1)
    branches = [random_branch(backbone, it, seed=seed) for it in methods for seed in (1, 2)]
    texts = [encoded(range(5, 6 + n)) for n in (2, 9)]
    rows = [Row(encoding=text, branch=it) for text in texts for it in branches]

    with torch.inference_mode():
        at_once = forward(backbone, rows)
        monkeypatch.setattr(layer, "MANY_TOKENS", 1)
        by_task = forward(backbone, rows)

    for one, other in zip(at_once, by_task, strict=True):
        assert torch.equal(one, other)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kept", range(0, 16, 5))
def test_other_rows_of_the_same_shapes_leave_the_bits_of_a_row_unchanged(kept: int) -> None:
    branches = [branch_of(method, index) for index, method in enumerate(METHODS)]
    chance = random.Random(0)
    first, second = (
        [
            Row(encoding=random_text(chance, n), branch=branches[n % len(branches)])
            for n in range(3, 19)
        ]
        for _ in range(2)
    )
    second[kept] = first[kept]

    with torch.inference_mode():
        before, after = forward(BACKBONE, first), forward(BACKBONE, second)

    assert torch.equal(before[kept], after[kept])
    assert not any(
        torch.equal(before[index], after[index]) for index in range(len(first)) if index != kept
    )


def test_a_row_that_overflows_disturbs_no_other() -> None:
    rows = some_rows(11, 12)
    wild = branch_of(Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE), 3)
    for tensor in wild.parameters.values():
        tensor.fill_(3e38)
    with torch.inference_mode():
        alone = forward(BACKBONE, rows)
        together = forward(BACKBONE, [*rows, Row(encoding=rows[0].encoding, branch=wild)])

    assert not torch.isfinite(together[-1]).all()
    for one, other in zip(alone, together[:-1], strict=True):
        torch.testing.assert_close(other, one, atol=1e-5, rtol=0)


def test_tasks_that_change_other_maps_learn_together_as_each_alone() -> None:
    targets = [
        tuple(LinearMap), (LinearMap.KEY,), QUERY_AND_VALUE, (LinearMap.FEEDFORWARD_IN,),
    ]  # fmt: skip
    branches = [
        branch_of(Lora(rank=2, alpha=4.0, targets=it), seed) for seed, it in enumerate(targets)
    ]
    weights = [tensor.requires_grad_() for it in branches for tensor in it.parameters.values()]
    rows = [
        Row(encoding=encoded(range(5 + first, 12 + first)), branch=branches[first % len(branches)])
        for first in range(2 * len(branches))
    ]

    together = torch.stack([it.square().sum() for it in forward(BACKBONE, rows)]).sum()
    alone = torch.stack([forward(BACKBONE, [row])[0].square().sum() for row in rows]).sum()

    found, expected = (torch.autograd.grad(loss, weights) for loss in (together, alone))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


def test_no_rows_give_no_logits() -> None:
    assert forward(BACKBONE, []) == []


def test_dropout_changes_the_branch_but_never_the_trunk() -> None:
    deep = Row(encoding=encoded(range(5, 25)), branch=branch_of(TopK(num_layers=3), 1))

    with torch.inference_mode():
        answers = [forward(BACKBONE, [deep], dropout=0.3)[0] for _ in range(4)]

    assert not any(torch.equal(answers[0], answer) for answer in answers[1:])


def test_dropout_over_mixed_split_depths_is_refused() -> None:
    with pytest.raises(ValueError, match="same split depth"):
        forward(BACKBONE, some_rows(0, 20), dropout=0.1)
