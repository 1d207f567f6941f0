import random

import pytest
import torch

from nunatak_model.ops.rows import SumRows, sum_by_index, sum_by_segment


@pytest.mark.parametrize("sum_rows", [sum_by_index, sum_by_segment])
def test_each_row_is_the_sum_of_its_own_tokens(sum_rows: SumRows) -> None:
    lengths = [3, 1, 7]
    hidden = torch.randn(11, 5, generator=torch.Generator().manual_seed(0))
    parts = torch.split(hidden, lengths)

    sums = sum_rows(hidden, torch.tensor(lengths))

    for one, part in zip(sums, parts, strict=True):
        torch.testing.assert_close(one, part.sum(dim=0))


def test_both_forms_have_the_same_bits_on_a_cpu() -> None:
    chance = random.Random(0)
    for seed in range(20):
        lengths = [chance.randint(1, 90) for _ in range(20)]
        hidden = torch.randn(sum(lengths), 40, generator=torch.Generator().manual_seed(seed))
        sizes = torch.tensor(lengths)

        assert torch.equal(sum_by_index(hidden, sizes), sum_by_segment(hidden, sizes))


def test_a_row_that_overflows_spoils_no_other() -> None:
    hidden = torch.ones(4, 2)
    hidden[0] = torch.inf

    sums = sum_by_segment(hidden, torch.tensor([1, 3]))

    assert torch.equal(sums[1], torch.tensor([3.0, 3.0]))
