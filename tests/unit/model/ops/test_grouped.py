import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from nunatak_model.ops import grouped
from nunatak_model.ops.grouped import (
    FIRST_SLOTS,
    MAX_SLOTS,
    PaddedGroups,
    PlanGroups,
    Slot,
    SlotBanks,
    grouped_layer_norm,
    grouped_linear,
    kernel_groups,
    padded_groups,
)
from nunatak_model.ops.rows import LAUNCH_CELLS, sum_by_index, sum_by_segment

CPU = torch.device("cpu")
NUM_SLOTS, WIDTH, OUT = 40, 16, 8
MEMBERS = [
    [(0, 3)],
    [(39, 1)],
    [(1, 2), (3, 4)],
    [(0, 1), (1, 1), (2, 1), (3, 1), (4, 9)],
    [(2, 3), (2, 4)],
    [(0, 5), (1, 2), (38, 6), (39, 1)],
    [(slot, 1 + slot % 7) for slot in range(NUM_SLOTS)],
    [(slot, 700 if slot == 20 else 12) for slot in range(NUM_SLOTS)],
    [(0, 4), (2, 600), (5, 3), (7, 900), (39, 2)],
]
PLANS: list[PlanGroups] = [kernel_groups, padded_groups]
SHAPES = {"weight": (4, 8), "bias": (4,)}
SLOT_BYTES = 36 * 4


@pytest.fixture(params=PLANS, ids=["kernel", "padded"])
def plan(request: pytest.FixtureRequest) -> PlanGroups:
    return request.param


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def slots_of(members: list[tuple[int, int]]) -> list[int]:
    return [slot for slot, num_tokens in members for _ in range(num_tokens)]


def unwritten(weight: Tensor, members: list[tuple[int, int]]) -> Tensor:
    """Stacked weights, where the slots without tokens hold what memory holds."""
    for slot in set(range(len(weight))) - {slot for slot, _ in members}:
        weight[slot] = torch.nan
    return weight


def banks(*, page_slots: int = MAX_SLOTS) -> SlotBanks:
    return SlotBanks(dtype=torch.float32, device=CPU, page_bytes=page_slots * SLOT_BYTES)


def names(tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    return tuple(tensors)


def take(from_banks: SlotBanks, form: str = "a") -> Slot[tuple[str, ...]]:
    return from_banks.take(form, SHAPES, names)  # pyrefly: ignore[bad-argument-type]


@pytest.mark.parametrize("members", MEMBERS, ids=lambda it: str(it)[:40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_grouped_product_is_the_loop_over_its_slots(
    members: list[tuple[int, int]], dtype: torch.dtype, plan: PlanGroups
) -> None:
    """Slots without tokens are never read, whatever their memory holds."""
    slots = slots_of(members)
    x = random_tensor(len(slots), WIDTH).to(dtype)
    weight = unwritten(random_tensor(NUM_SLOTS, OUT, WIDTH, seed=1), members).to(dtype)
    bias = unwritten(random_tensor(NUM_SLOTS, OUT, seed=2), members).to(dtype)
    groups = plan(members, NUM_SLOTS, CPU)

    product = grouped_linear(x, weight, None, groups)
    y = grouped_linear(x, weight, bias, groups)

    tolerance, share = (1e-5, 0) if dtype is torch.float32 else (0.1, 0.02)
    expected = torch.stack([x[token] @ weight[slot].T for token, slot in enumerate(slots)])
    torch.testing.assert_close(product, expected, atol=tolerance, rtol=share)
    torch.testing.assert_close(y, expected + bias[slots], atol=tolerance, rtol=share)


def test_a_token_that_is_no_number_spoils_no_other(plan: PlanGroups) -> None:
    members = [(0, 2), (1, 5), (3, 2)]
    x = random_tensor(9, WIDTH)
    x[0], x[3] = torch.nan, torch.inf
    weight = random_tensor(5, OUT, WIDTH, seed=1)

    y = grouped_linear(x, weight, None, plan(members, 5, CPU))

    spoilt = {0, 3}
    assert {it for it in range(9) if not y[it].isfinite().all()} == spoilt


def padded(members: list[tuple[int, int]]) -> PaddedGroups:
    return padded_groups(members, NUM_SLOTS, CPU)


def test_slots_of_like_sizes_take_one_product() -> None:
    chance = random.Random(0)
    groups = padded([(slot, chance.randint(16, 48)) for slot in range(NUM_SLOTS)])

    assert len(groups.blocks) == 1


def test_a_slot_with_far_more_tokens_makes_no_other_larger() -> None:
    usual = padded([(slot, 12) for slot in range(NUM_SLOTS)])
    skewed = padded([(slot, 700 if slot == 20 else 12) for slot in range(NUM_SLOTS)])

    assert len(skewed.blocks) == 2
    assert len(skewed.padding.token_of) == len(usual.padding.token_of) + 700


def test_padding_costs_less_than_the_launches_that_would_avoid_it() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        slots = sorted(chance.sample(range(NUM_SLOTS), chance.randint(2, NUM_SLOTS)))
        sizes = [min(512, 1 + int(chance.expovariate(1 / 40))) for _ in slots]
        groups = padded(list(zip(slots, sizes, strict=True)))

        padding = len(groups.padding.token_of) - sum(sizes)
        assert padding <= LAUNCH_CELLS * len(slots)
        assert len(groups.blocks) <= len(slots)


@pytest.mark.parametrize(
    "offset", [random_tensor(NUM_SLOTS, WIDTH, seed=2), None], ids=["offset", "none"]
)
@pytest.mark.parametrize("members", MEMBERS[:5], ids=str)
def test_each_token_is_normalised_with_the_gain_of_its_slot(
    members: list[tuple[int, int]], offset: Tensor | None, plan: PlanGroups
) -> None:
    slots = slots_of(members)
    x = random_tensor(len(slots), WIDTH)
    gain = unwritten(random_tensor(NUM_SLOTS, WIDTH, seed=1), members)
    groups = plan(members, NUM_SLOTS, CPU)

    y = grouped_layer_norm(x, gain, offset, groups, epsilon=1e-5)

    for token, slot in enumerate(slots):
        bias = None if offset is None else offset[slot]
        expected = torch.nn.functional.layer_norm(x[token], (WIDTH,), gain[slot], bias, 1e-5)
        torch.testing.assert_close(y[token], expected)


@pytest.mark.parametrize(
    ("first_page", "first_slots"), [(2, FIRST_SLOTS), (13, 13), (1000, MAX_SLOTS)]
)
def test_only_the_first_page_of_large_versions_is_small(
    first_page: int, first_slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouped, "FIRST_PAGE_BYTES", first_page * SLOT_BYTES)
    many = banks()

    slots = [take(many) for _ in range(first_slots + 1)]

    assert slots[0].page.num_slots == first_slots
    assert slots[-1].page.num_slots == MAX_SLOTS


@pytest.mark.parametrize("page_slots", [1, 5, MAX_SLOTS])
def test_threads_never_take_the_same_slot(page_slots: int) -> None:
    shared = banks(page_slots=page_slots)
    with ThreadPoolExecutor(8) as pool:
        taken = [pool.submit(take, shared) for _ in range(100)]
        slots = [it.result() for it in taken]

    assert len({slot.place for slot in slots}) == 100


def test_pages_take_no_more_than_the_budget_and_a_version_always_finds_a_place() -> None:
    limited = banks()
    limited.limit((FIRST_SLOTS + 3) * SLOT_BYTES)

    slots = [take(limited) for _ in range(FIRST_SLOTS + 3)]
    assert limited.num_bytes() == (FIRST_SLOTS + 3) * SLOT_BYTES
    slots += [take(limited, "b"), take(limited, "b")]

    assert limited.num_bytes() == len(slots) * SLOT_BYTES
    assert len({slot.place for slot in slots}) == len(slots)


def test_the_first_page_of_a_form_is_no_larger_than_the_budget() -> None:
    limited = banks()
    limited.limit(3 * SLOT_BYTES)

    assert take(limited).page.num_slots == 3


def test_each_row_is_the_sum_of_its_own_tokens_with_the_same_bits_in_both_forms() -> None:
    chance = random.Random(0)
    for seed in range(20):
        lengths = [chance.randint(1, 90) for _ in range(20)]
        hidden = random_tensor(sum(lengths), 40, seed=seed)

        sums = sum_by_segment(hidden, torch.tensor(lengths))

        assert torch.equal(sum_by_index(hidden, torch.tensor(lengths)), sums)
        expected = [part.sum(dim=0) for part in torch.split(hidden, lengths)]
        torch.testing.assert_close(sums, torch.stack(expected))


def test_a_row_that_overflows_spoils_no_other() -> None:
    hidden = torch.ones(4, 2)
    hidden[0] = torch.inf

    sums = sum_by_segment(hidden, torch.tensor([1, 3]))

    assert torch.equal(sums[1], torch.tensor([3.0, 3.0]))
