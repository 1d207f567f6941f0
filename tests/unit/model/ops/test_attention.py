from itertools import pairwise

import pytest
import torch
from torch import Tensor

from nunatak_model.ops.attention import attend, attention_by_runs, narrow, plan_attention

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


@pytest.mark.parametrize("num_shared", [1, 2])
def test_a_causal_token_sees_itself_and_earlier_tokens_by_shared_heads(num_shared: int) -> None:
    lengths, num_heads = [1, 9, 9, 30], 4
    qkv = torch.randn(sum(lengths), (num_heads + 2 * num_shared) * HEAD_WIDTH)
    plan = attention_by_runs(lengths, CPU).causal()

    seen = plan(qkv, num_heads=num_heads, num_key_heads=num_shared, dropout=0.0)

    for rows, found in zip(torch.split(qkv, lengths), torch.split(seen, lengths), strict=True):
        heads = rows.view(len(rows), -1, HEAD_WIDTH)
        for place in range(len(rows)):
            for head in range(num_heads):
                shared = num_heads + head * num_shared // num_heads
                keys, values = heads[: place + 1, shared], heads[: place + 1, shared + num_shared]
                weights = (keys @ heads[place, head] / HEAD_WIDTH**0.5).softmax(dim=0)
                own = slice(head * HEAD_WIDTH, (head + 1) * HEAD_WIDTH)
                torch.testing.assert_close(found[place, own], weights @ values, atol=1e-5, rtol=0)


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
