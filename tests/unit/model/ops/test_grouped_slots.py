from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from nunatak_model.ops import grouped
from nunatak_model.ops.grouped import FIRST_SLOTS, MAX_SLOTS, Slot, SlotBanks

SHAPES = {"weight": (4, 8), "bias": (4,)}
SLOT_BYTES = 36 * 4
CPU = torch.device("cpu")


def banks(*, page_slots: int = MAX_SLOTS) -> SlotBanks:
    return SlotBanks(dtype=torch.float32, device=CPU, page_bytes=page_slots * SLOT_BYTES)


def names(tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    return tuple(tensors)


def take(from_banks: SlotBanks, form: str = "a") -> Slot[tuple[str, ...]]:
    return from_banks.take(form, SHAPES, names)


def filled(value: float) -> dict[str, Tensor]:
    return {name: torch.full(shape, value) for name, shape in SHAPES.items()}


def test_versions_of_one_form_share_a_page_until_it_is_full() -> None:
    of_two = banks(page_slots=2)

    slots = [take(of_two) for _ in range(3)]

    assert slots[0].page is slots[1].page
    assert slots[2].page is not slots[0].page
    assert len({slot.place for slot in slots}) == 3


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


def test_forms_share_no_page() -> None:
    both = banks()

    first, second = take(both, "a"), take(both, "b")

    assert first.page is not second.page


def test_a_slot_is_taken_once_and_again_only_when_its_holder_is_gone() -> None:
    of_two = banks(page_slots=2)
    first, second = take(of_two), take(of_two)
    index, page = first.index, first.page
    del first

    third = take(of_two)

    assert third.page is page
    assert third.index == index != second.index


def test_a_page_ends_with_its_last_slot() -> None:
    few = banks()
    first, second = take(few), take(few)
    assert few.num_bytes() == MAX_SLOTS * SLOT_BYTES

    del first
    assert few.num_bytes() == MAX_SLOTS * SLOT_BYTES
    del second

    assert few.num_bytes() == 0


def test_what_is_written_stays_in_its_slot() -> None:
    some = banks()
    slots = [take(some) for _ in range(3)]

    for value, slot in enumerate(slots):
        slot.write(filled(float(value)))

    for value, slot in enumerate(slots):
        parameters = slot.parameters()
        assert parameters.keys() == SHAPES.keys()
        assert all(bool((tensor == value).all()) for tensor in parameters.values())


def test_a_version_larger_than_a_page_has_one_of_its_own() -> None:
    tiny = SlotBanks(dtype=torch.float32, device=CPU, page_bytes=1)

    slot = take(tiny)

    assert slot.page.num_slots == 1


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
