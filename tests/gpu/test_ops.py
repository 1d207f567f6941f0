"""The kernels of the device against the forms that run everywhere."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from doubles.gpu import DEVICE
from nunatak_model.ops.attention import (
    FLASH_CAPABILITY,
    Attention,
    attention_by_runs,
    padded_attention,
    varlen_attention,
)
from nunatak_model.ops.grouped import (
    GROUPED_CAPABILITIES,
    PlanGroups,
    grouped_linear,
    kernel_groups,
    padded_groups,
)

NUM_HEADS, HEAD_WIDTH = 12, 64
LENGTHS = [7, 7, 128, 1, 33, 40, 2]
DRAWN_LENGTHS = [1 + 37 * row % 90 for row in range(64)]
HALF = [torch.bfloat16, torch.float16]
TOLERANCE = 0.02


Attend = Callable[[Sequence[int], torch.device], Attention]


@pytest.fixture(
    scope="module", params=[varlen_attention, padded_attention], ids=["flash", "padded"]
)
def attend(request: pytest.FixtureRequest) -> Attend:
    has_flash = DEVICE.type == "cuda" and (
        torch.cuda.get_device_capability(DEVICE) >= FLASH_CAPABILITY
    )
    if request.param is varlen_attention and not has_flash:
        pytest.skip("no flash kernels on this device")
    return request.param


@pytest.fixture(scope="module", params=[kernel_groups, padded_groups], ids=["kernel", "padded"])
def plan(request: pytest.FixtureRequest) -> PlanGroups:
    if request.param is kernel_groups:
        if DEVICE.type != "cuda":
            pytest.skip("no grouped kernel on a CPU")
        if torch.cuda.get_device_capability(DEVICE) not in GROUPED_CAPABILITIES:
            pytest.skip("no grouped kernel on this device")
    return request.param


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize("dtype", [*HALF, torch.float32], ids=str)
@pytest.mark.parametrize("reach", [None, 1, 16, 64])
@pytest.mark.parametrize("lengths", [LENGTHS, DRAWN_LENGTHS], ids=["few", "many"])
def test_attention_of_the_device_is_attention_by_runs(
    attend: Attend, dtype: torch.dtype, reach: int | None, lengths: list[int]
) -> None:
    if attend is varlen_attention and dtype not in HALF:
        pytest.skip("the flash kernels read numbers of 16 bits")
    qkv = random_tensor(sum(lengths), 3 * NUM_HEADS * HEAD_WIDTH)
    device, runs = attend(lengths, DEVICE), attention_by_runs(lengths, DEVICE)
    attention = device if reach is None else device.narrow(reach)
    oracle = runs if reach is None else runs.narrow(reach)

    seen = attention(qkv.to(dtype), num_heads=NUM_HEADS, dropout=0.0)

    expected = oracle(qkv, num_heads=NUM_HEADS, dropout=0.0)
    torch.testing.assert_close(seen.float(), expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert torch.equal(device.positions(), runs.positions())


def test_no_bit_of_a_row_depends_on_the_others(attend: Attend) -> None:
    qkv = random_tensor(sum(LENGTHS), 3 * NUM_HEADS * HEAD_WIDTH)
    qkv = qkv.to(torch.bfloat16) if attend is varlen_attention else qkv
    attention = attend(LENGTHS, DEVICE)
    begin = sum(LENGTHS[:4])
    row = slice(begin, begin + LENGTHS[4])
    other = torch.full_like(qkv, torch.nan)
    other[row] = qkv[row]

    one = attention(qkv, num_heads=NUM_HEADS, dropout=0.0)[row]
    two = attention(other, num_heads=NUM_HEADS, dropout=0.0)[row]

    assert torch.equal(one, two)


@pytest.mark.parametrize(("out", "into"), [(8, 768), (768, 8), (64, 768), (2304, 768), (8, 384)])
@pytest.mark.parametrize(
    "members",
    [
        [(0, 3)],
        [(63, 1)],
        [(1, 20), (3, 41), (17, 1)],
        [(slot, 32) for slot in range(64)],
        [(slot, 900 if slot == 20 else 9) for slot in range(0, 64, 3)],
    ],
    ids=["first", "last", "few", "all", "skewed"],
)
def test_a_grouped_product_is_the_loop_over_its_slots(
    members: list[tuple[int, int]], out: int, into: int, plan: PlanGroups
) -> None:
    slots = [slot for slot, num_tokens in members for _ in range(num_tokens)]
    x = random_tensor(len(slots), into).to(torch.bfloat16)
    weight = random_tensor(64, out, into, seed=1).to(torch.bfloat16)
    bias = random_tensor(64, out, seed=2).to(torch.bfloat16)
    for slot in set(range(64)) - set(slots):
        weight[slot], bias[slot] = torch.nan, torch.nan
    groups = plan(members, 64, DEVICE)

    seen = grouped_linear(x, weight, bias, groups)

    expected = torch.cat(
        [x[token : token + 1] @ weight[slot].T + bias[slot] for token, slot in enumerate(slots)]
    )
    torch.testing.assert_close(seen, expected, atol=0.05 * into**0.5, rtol=TOLERANCE)


def test_a_grouped_product_of_part_of_a_batch_reads_and_writes_that_part(plan: PlanGroups) -> None:
    """The rows of one page are a range of the packed tokens, of any first token and length."""
    x = random_tensor(101, 768).to(torch.bfloat16)
    weight = random_tensor(4, 64, 768, seed=1).to(torch.bfloat16)
    groups = plan([(0, 5), (2, 30)], 4, DEVICE)
    part = x[7:42]

    seen = grouped_linear(part, weight, None, groups)

    expected = torch.cat([part[:5] @ weight[0].T, part[5:] @ weight[2].T])
    torch.testing.assert_close(seen, expected, atol=0.5, rtol=TOLERANCE)
