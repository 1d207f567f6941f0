"""Guards the other tests here: shapes in annotations are checked against real tensors."""

import pytest
import torch
from jaxtyping import TypeCheckError

from nunatak_model.ops.linear import apply_linear
from nunatak_model.ops.rows import sum_by_index
from nunatak_model.weights import Linear

LENGTHS = torch.tensor([1, 2])


def test_a_tensor_of_another_rank_or_kind_is_refused() -> None:
    assert sum_by_index(torch.zeros(3, 4), LENGTHS).shape == (2, 4)
    for wrong in (torch.zeros(3), torch.zeros(3, 4, 5), torch.zeros(3, 4, dtype=torch.int64)):
        with pytest.raises(TypeCheckError, match="sum_by_index"):
            sum_by_index(wrong, LENGTHS)


def test_a_record_whose_tensors_contradict_each_other_is_refused() -> None:
    linear = Linear(weight=torch.zeros(5, 4), bias=torch.zeros(5))

    assert apply_linear(torch.zeros(3, 4), linear).shape == (3, 5)
    with pytest.raises(TypeCheckError, match="bias"):
        Linear(weight=torch.zeros(5, 4), bias=torch.zeros(4))
