import pytest
import torch
from torch import Tensor

from nunatak_model.ops.grouped import (
    grouped_layer_norm,
    grouped_linear,
    grouped_product,
    slot_groups,
)

CPU = torch.device("cpu")
NUM_SLOTS, WIDTH, OUT = 5, 16, 8
MEMBERS = [
    [(0, 3)],
    [(4, 1)],
    [(1, 2), (3, 4)],
    [(0, 1), (1, 1), (2, 1), (3, 1), (4, 9)],
    [(2, 3), (2, 4)],
]


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def slots_of(members: list[tuple[int, int]]) -> list[int]:
    return [slot for slot, num_tokens in members for _ in range(num_tokens)]


@pytest.mark.parametrize("members", MEMBERS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_grouped_product_is_the_loop_over_its_slots(
    members: list[tuple[int, int]], dtype: torch.dtype
) -> None:
    slots = slots_of(members)
    x = random_tensor(len(slots), WIDTH).to(dtype)
    weight = random_tensor(NUM_SLOTS, OUT, WIDTH, seed=1).to(dtype)
    bias = random_tensor(NUM_SLOTS, OUT, seed=2).to(dtype)
    groups = slot_groups(members, num_slots=NUM_SLOTS, device=CPU)

    product = grouped_product(x, weight, groups)
    y = grouped_linear(x, weight, bias, groups)

    tolerance = 1e-5 if dtype is torch.float32 else 0.1
    for token, slot in enumerate(slots):
        expected = x[token] @ weight[slot].T
        torch.testing.assert_close(product[token], expected, atol=tolerance, rtol=0)
        torch.testing.assert_close(y[token], expected + bias[slot], atol=tolerance, rtol=0)


def test_what_no_slot_of_the_batch_holds_is_not_read() -> None:
    members = [(1, 2), (3, 1)]
    weight, gain = random_tensor(NUM_SLOTS, OUT, WIDTH), random_tensor(NUM_SLOTS, WIDTH)
    for slot in (0, 2, 4):
        weight[slot], gain[slot] = torch.nan, torch.nan
    x = random_tensor(3, WIDTH, seed=1)
    groups = slot_groups(members, num_slots=NUM_SLOTS, device=CPU)

    assert grouped_product(x, weight, groups).isfinite().all()
    assert grouped_layer_norm(x, gain, None, groups, epsilon=1e-5).isfinite().all()


@pytest.mark.parametrize(
    "offset", [random_tensor(NUM_SLOTS, WIDTH, seed=2), None], ids=["offset", "none"]
)
@pytest.mark.parametrize("members", MEMBERS, ids=str)
def test_each_token_is_normalised_with_the_gain_of_its_slot(
    members: list[tuple[int, int]], offset: Tensor | None
) -> None:
    slots = slots_of(members)
    x, gain = random_tensor(len(slots), WIDTH), random_tensor(NUM_SLOTS, WIDTH, seed=1)
    groups = slot_groups(members, num_slots=NUM_SLOTS, device=CPU)

    y = grouped_layer_norm(x, gain, offset, groups, epsilon=1e-5)

    for token, slot in enumerate(slots):
        bias = None if offset is None else offset[slot]
        expected = torch.nn.functional.layer_norm(x[token], (WIDTH,), gain[slot], bias, 1e-5)
        torch.testing.assert_close(y[token], expected)
