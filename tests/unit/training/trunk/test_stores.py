"""Laws of both stores of trunk states: stores save computation and never change a result."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from doubles.backbones import tiny_backbone
from doubles.examples import toy_data
from nunatak_contract.methods import HeadOnly, Method, TopK
from nunatak_model import Encoding, TrunkStates, tensors_to_bytes, trunk_source
from nunatak_training.fitting import fit_task
from nunatak_training.recipes import default_recipe
from nunatak_training.report import Report
from nunatak_training.trunk import (
    CHUNK_TOKENS,
    DiskTrunkStore,
    InputSet,
    MemoryTrunkStore,
    TrunkStore,
    states_key,
)

BACKBONE = tiny_backbone(num_layers=4)
MakeStore = Callable[[Path], TrunkStore]


def in_memory(_: Path) -> TrunkStore:
    return MemoryTrunkStore()


STORES = [pytest.param(DiskTrunkStore, id="disk"), pytest.param(in_memory, id="memory")]


def encodings(count: int, *, seed: int = 0) -> list[Encoding]:
    source = random.Random(seed)
    lengths = [source.randint(3, 40) for _ in range(count)]
    return [
        Encoding(token_ids=tuple(source.choices(range(5, 50), k=n)), type_ids=(0,) * n)
        for n in lengths
    ]


class Counting:
    """Counts the inputs that go through the trunk."""

    def __init__(self) -> None:
        self.computed = 0

    def __call__(self, done: int, num_inputs: int) -> None:
        self.computed += num_inputs if done == num_inputs else 0


def states_of(
    store: TrunkStore, inputs: list[Encoding], depth: int, progress: Counting | None = None
) -> list[Tensor]:
    held = store.states(BACKBONE, inputs, depth=depth, progress=progress or Counting())
    return [read(held, encoding, depth) for encoding in inputs]


def read(held: TrunkStates, encoding: Encoding, depth: int) -> Tensor:
    source = trunk_source(BACKBONE, encoding)
    assert list(held.depths(source)) == [depth]
    return held.read(source, depth)


def all_equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("make_store", STORES)
def test_a_set_goes_through_the_trunk_once_in_any_order(
    tmp_path: Path, make_store: MakeStore
) -> None:
    store, progress = make_store(tmp_path), Counting()
    inputs = encodings(30)

    first = states_of(store, inputs, 2, progress)
    second = states_of(store, inputs[::-1] + inputs, 2, progress)

    assert progress.computed == 30
    assert all_equal(second, first[::-1] + first)


@pytest.mark.parametrize("make_store", STORES)
def test_a_depth_computed_from_one_below_has_the_bits_of_a_whole_pass(
    tmp_path: Path, make_store: MakeStore
) -> None:
    inputs = encodings(300)
    assert sum(each.num_tokens for each in inputs) > CHUNK_TOKENS
    stepwise = make_store(tmp_path / "stepwise")
    states_of(stepwise, inputs, 1)

    assert all_equal(
        states_of(stepwise, inputs, 3), states_of(make_store(tmp_path / "whole"), inputs, 3)
    )


def test_disk_memory_and_a_second_process_give_the_same_bits(tmp_path: Path) -> None:
    inputs = encodings(40)
    written, progress = states_of(DiskTrunkStore(tmp_path), inputs, 2), Counting()

    # A second store stands for the store of another process.
    reopened = states_of(DiskTrunkStore(tmp_path), inputs, 2, progress)

    assert progress.computed == 0
    assert all_equal(reopened, written)
    assert all_equal(written, states_of(MemoryTrunkStore(), inputs, 2))


@pytest.mark.parametrize("method", [TopK(num_layers=2), HeadOnly()])
def test_training_gives_the_same_bytes_with_and_without_a_cache(
    tmp_path: Path, method: Method
) -> None:
    recipe = default_recipe(method, changes={"epochs": 2, "batch_size": 8, "max_length": 32})

    def trained(trunks: TrunkStore | None) -> bytes:
        report = Report()
        data = toy_data(num_train=16, num_dev=4)
        found = fit_task(data, recipe, BACKBONE, report=report, trunks=trunks)
        return tensors_to_bytes(found.parameters)

    without, cold, warm = (
        trained(trunks) for trunks in (None, DiskTrunkStore(tmp_path), DiskTrunkStore(tmp_path))
    )

    assert without == cold == warm


def test_another_backbone_or_another_text_is_another_entry() -> None:
    inputs, other = InputSet.of(encodings(5)), InputSet.of(encodings(6))
    stranger = tiny_backbone(num_layers=4, seed=1)

    keys = {
        states_key(BACKBONE, inputs, 1),
        states_key(BACKBONE, inputs, 2),
        states_key(BACKBONE, other, 1),
        states_key(stranger, inputs, 1),
        states_key(tiny_backbone(num_layers=4, dtype=torch.bfloat16), inputs, 1),
    }

    assert len(keys) == 5


@pytest.mark.parametrize("make_store", STORES)
def test_states_do_not_serve_another_backbone(tmp_path: Path, make_store: MakeStore) -> None:
    (encoding,) = encodings(1)
    held = make_store(tmp_path).states(BACKBONE, [encoding], depth=2, progress=Counting())
    stranger = tiny_backbone(num_layers=4, seed=1)

    assert not held.depths(trunk_source(stranger, encoding))


def test_what_is_above_the_memory_budget_still_trains() -> None:
    inputs = encodings(10)
    held = MemoryTrunkStore(max_bytes=100).states(BACKBONE, inputs, depth=2, progress=Counting())

    assert not held.depths(trunk_source(BACKBONE, inputs[0]))


def test_memory_keeps_the_sets_read_last() -> None:
    sets = [encodings(10, seed=seed) for seed in range(3)]
    largest = max(sum(each.num_tokens for each in inputs) for inputs in sets) * 32 * 4
    store, progress = MemoryTrunkStore(max_bytes=2 * largest), Counting()

    for index in (0, 1, 0, 2, 0, 1):
        states_of(store, sets[index], 2, progress)

    assert progress.computed == 4 * 10  # misses: 0, 1, 2, and 1 again, because 2 evicted 1
