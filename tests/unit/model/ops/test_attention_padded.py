import random

import pytest
import torch
from torch import Tensor

from nunatak_model.ops.attention import (
    PaddedAttention,
    RunAttention,
    attention_by_runs,
    padded_attention,
)

CPU = torch.device("cpu")
NUM_HEADS, HEAD_WIDTH = 2, 8
LENGTHS = [
    [7, 5],
    [5, 9, 5, 9, 7],
    [1, 9, 2, 8, 7, 30],
    [40, 31, 3],
    [300, *range(1, 40)],
    [1, 300, 2, 300, 3, 290, 120],
]


def random_qkv(lengths: list[int], seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sum(lengths), 3 * NUM_HEADS * HEAD_WIDTH, generator=generator)


def padded(lengths: list[int]) -> PaddedAttention:
    attention = padded_attention(lengths, CPU)
    assert isinstance(attention, PaddedAttention)
    return attention


@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda it: str(it)[:30])
@pytest.mark.parametrize("reach", [None, 1, 3, 100])
def test_padded_rows_see_what_a_call_for_each_run_sees(
    lengths: list[int], reach: int | None
) -> None:
    qkv = random_qkv(lengths)
    attention, oracle = padded(lengths), attention_by_runs(lengths, CPU)
    if reach is not None:
        attention, oracle = attention.narrow(reach), oracle.narrow(reach)

    seen = attention(qkv, num_heads=NUM_HEADS, dropout=0.0)

    expected = oracle(qkv, num_heads=NUM_HEADS, dropout=0.0)
    torch.testing.assert_close(seen, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda it: str(it)[:30])
def test_positions_found_on_the_device_are_those_counted_on_the_host(lengths: list[int]) -> None:
    counted = attention_by_runs(lengths, CPU).positions()

    assert torch.equal(padded(lengths).positions(), counted)


@pytest.mark.parametrize("reach", [None, 2])
def test_no_bit_of_a_row_depends_on_the_others(reach: int | None) -> None:
    lengths = [7, 7, 128, 1, 33, 40, 2]
    attention = padded(lengths) if reach is None else padded(lengths).narrow(reach)
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
    assert isinstance(padded_attention([6] * 9, CPU), RunAttention)
    assert isinstance(padded_attention([6], CPU), RunAttention)


def test_rows_of_many_lengths_take_few_calls_and_little_padding() -> None:
    for seed in range(30):
        chance = random.Random(seed)
        lengths = [min(512, 1 + int(chance.expovariate(1 / 40))) for _ in range(64)]
        attention = padded(lengths)

        cells = sum(run.num_tokens for run in attention.plan)
        assert len(attention.plan) <= 6
        assert cells <= 2 * sum(lengths) + 2000
