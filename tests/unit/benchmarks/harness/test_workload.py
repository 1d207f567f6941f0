from itertools import chain
from statistics import median

import pytest
import torch

from benchmarks.harness.workload import (
    MAX_LENGTH,
    lognormal_lengths,
    padded,
    random_encodings,
    sorted_batches,
)


@pytest.mark.parametrize("count", [32, 1001])
def test_lengths_have_the_median_and_the_cap_of_their_distribution(count: int) -> None:
    lengths = lognormal_lengths(count)

    assert median(lengths) == 20
    assert min(lengths) >= 1
    assert max(lengths) <= MAX_LENGTH


def test_sorted_batches_hold_every_text_once_from_short_to_long() -> None:
    lengths = lognormal_lengths(30)

    batches = sorted_batches(lengths, 8)

    assert [len(batch) for batch in batches] == [8, 8, 8, 6]
    order = list(chain.from_iterable(batches))
    assert sorted(order) == list(range(30))
    assert [lengths[index] for index in order] == sorted(lengths)


def test_padding_is_masked_and_nothing_else() -> None:
    encodings = random_encodings([3, 5], vocabulary=30_000)

    ids, mask = padded(encodings)

    assert torch.equal(mask, torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]))
    assert torch.equal(ids[0], torch.tensor([*encodings[0].token_ids, 0, 0]))
