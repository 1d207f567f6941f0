import random
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from doubles.serving_kernels import install_flash_double
from nunatak_model.ops import attention
from nunatak_model.ops.attention import (
    Attention,
    attend,
    attention_by_runs,
    narrow,
    padded_attention,
    plan_attention,
    varlen_attention,
)

CPU = torch.device("cpu")
NUM_HEADS, HEAD_WIDTH = 2, 4
FORMS = {"padded": padded_attention, "varlen": varlen_attention}
"""The forms of a device; attention by runs is their oracle."""
LENGTHS = [
    [7],
    [7, 5],
    [5, 5, 5],
    [5, 9, 5, 9, 7],
    [1, 9, 2, 8, 7, 30],
    [40, 31, 3],
    [300, *range(1, 40)],
    [1, 300, 2, 300, 3, 290, 120],
]

VIEWS: dict[str, Callable[[Attention], Attention]] = {
    "all": lambda it: it,
    "reach-1": lambda it: it.narrow(1),
    "reach-3": lambda it: it.narrow(3),
    "reach-100": lambda it: it.narrow(100),
    "causal": lambda it: it.causal(),
}


@pytest.fixture(autouse=True)
def _flash() -> None:
    install_flash_double()


def random_qkv(lengths: list[int], num_heads: int = 3 * NUM_HEADS) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(sum(lengths), num_heads * HEAD_WIDTH, generator=generator)


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
    qkv = random_qkv(lengths)
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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda it: str(it)[:30])
@pytest.mark.parametrize("num_shared", [1, NUM_HEADS])
@pytest.mark.parametrize("view", VIEWS)
def test_rows_and_positions_are_those_of_attention_by_runs(
    form: str, lengths: list[int], num_shared: int, view: str
) -> None:
    qkv = random_qkv(lengths, NUM_HEADS + 2 * num_shared)
    plans = [VIEWS[view](plan(lengths, CPU)) for plan in (FORMS[form], attention_by_runs)]

    seen, expected = (
        it(qkv, num_heads=NUM_HEADS, num_key_heads=num_shared, dropout=0.0) for it in plans
    )

    torch.testing.assert_close(seen, expected, atol=1e-5, rtol=0)
    assert torch.equal(plans[0].positions(), plans[1].positions())


@pytest.mark.parametrize("reach", [None, 2])
def test_no_bit_of_a_row_depends_on_the_others(reach: int | None) -> None:
    lengths = [7, 7, 128, 1, 33, 40, 2]
    attention = padded_attention(lengths, CPU)
    assert attention.padding is not None
    attention = attention if reach is None else attention.narrow(reach)
    qkv, offset = random_qkv(lengths), 0
    whole = attention(qkv, num_heads=NUM_HEADS, dropout=0.0)
    for length in lengths:
        row = slice(offset, offset + length)
        other = torch.full_like(qkv, torch.nan)
        other[row] = qkv[row]

        seen = attention(other, num_heads=NUM_HEADS, dropout=0.0)

        assert torch.equal(seen[row], whole[row])
        offset += length


def test_rows_of_one_length_need_no_padding() -> None:
    assert padded_attention([6] * 9, CPU).padding is None
    assert padded_attention([6], CPU).padding is None


def test_rows_of_many_lengths_take_few_calls_and_little_padding() -> None:
    for seed in range(30):
        chance = random.Random(seed)
        lengths = [min(512, 1 + int(chance.expovariate(1 / 40))) for _ in range(64)]
        attention = padded_attention(lengths, CPU)

        cells = sum(run.num_tokens for run in attention.plan)
        assert len(attention.plan) <= 6
        assert cells <= 2 * sum(lengths) + 2000


def test_a_build_without_the_operator_calls_torchs_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths = [1, 9, 2, 8, 7, 30]
    qkv, planned = random_qkv(lengths), varlen_attention(lengths, CPU).narrow(3)
    expected = planned(qkv, num_heads=NUM_HEADS, dropout=0.0)

    monkeypatch.setattr(attention, "FLASH_OPERATOR", "_no_such_operator")
    seen = planned(qkv, num_heads=NUM_HEADS, dropout=0.0)

    assert torch.equal(seen, expected)


def test_dropout_is_refused_rather_than_left_out() -> None:
    with pytest.raises(ValueError, match="have no dropout"):
        varlen_attention([3], CPU)(random_qkv([3]), num_heads=NUM_HEADS, dropout=0.1)
