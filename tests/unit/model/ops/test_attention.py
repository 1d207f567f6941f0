from itertools import pairwise

import pytest
import torch
from torch import Tensor

from nunatak_model.ops.attention import attend, narrow, plan_attention

CPU = torch.device("cpu")
NUM_HEADS, HEAD_WIDTH = 2, 4


def offsets_of(lengths: list[int]) -> list[int]:
    return [sum(lengths[:index]) for index in range(len(lengths) + 1)]


def one_row_by_hand(qkv: Tensor, reach: int) -> Tensor:
    """The definition: each token is a softmax-weighted mean over its neighbours."""
    query, key, value = qkv.view(len(qkv), 3, NUM_HEADS, HEAD_WIDTH).unbind(1)
    rows = list[Tensor]()
    for place in range(len(qkv)):
        near = slice(max(0, place - reach), place + reach + 1)
        scores = torch.einsum("hd,jhd->hj", query[place], key[near]) / HEAD_WIDTH**0.5
        rows.append(torch.einsum("hj,jhd->hd", scores.softmax(dim=1), value[near]).flatten())
    return torch.stack(rows)


@pytest.mark.parametrize("lengths", [[7], [5, 5, 5], [1, 9, 2, 8, 7, 30], [40, 31, 3]], ids=str)
@pytest.mark.parametrize("reach", [0, 1, 3, 100])
def test_a_token_sees_its_row_and_no_further_than_its_reach(lengths: list[int], reach: int) -> None:
    offsets = offsets_of(lengths)
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(offsets[-1], 3 * NUM_HEADS * HEAD_WIDTH, generator=generator)
    plan = narrow(plan_attention(lengths), reach=reach, device=CPU)

    seen = attend(qkv, plan, num_heads=NUM_HEADS, dropout=0.0)

    for first, last in pairwise(offsets):
        expected = one_row_by_hand(qkv[first:last], reach)
        torch.testing.assert_close(seen[first:last], expected, atol=1e-5, rtol=0)


def test_rows_within_reach_need_no_band() -> None:
    plan = plan_attention([5, 5])

    assert narrow(plan, reach=4, device=CPU) == plan


def test_neighbours_of_one_length_share_a_call() -> None:
    assert [(run.num_rows, run.length) for run in plan_attention([3, 3, 5, 3])] == [
        (2, 3),
        (1, 5),
        (1, 3),
    ]


def test_gradients_flow_within_the_reach_alone() -> None:
    qkv = torch.randn(40, 3 * NUM_HEADS * HEAD_WIDTH, requires_grad=True)
    plan = narrow(plan_attention([40]), reach=2, device=CPU)

    out = attend(qkv, plan, num_heads=NUM_HEADS, dropout=0.0)
    (gradient,) = torch.autograd.grad(out[20].square().sum(), [qkv])

    assert torch.isfinite(gradient).all()
    assert {int(place) for place in gradient.any(dim=1).nonzero()} == {18, 19, 20, 21, 22}
