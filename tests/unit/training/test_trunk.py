"""Laws of both stores of trunk states: stores save computation and never change a result.

Files on disk are whole or absent, within the budget, also with other processes.
"""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from doubles.backbones import tiny_backbone
from doubles.examples import toy_data
from doubles.processes import ended
from doubles.refusals import raises
from nunatak_contract.methods import HeadOnly, Method, TopK
from nunatak_model import Encoding, TrunkStates, tensors_to_bytes, trunk_source
from nunatak_training.cache import PARTIAL, stored_states
from nunatak_training.fitting import fit_task
from nunatak_training.recipes import default_recipe
from nunatak_training.report import Report
from nunatak_training.trunk import (
    CHUNK_TOKENS,
    STATES,
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


NUM_TOKENS, WIDTH = 6, 32
SET_BYTES = NUM_TOKENS * WIDTH * 4


def inputs(number: int) -> list[Encoding]:
    """Sets that differ, all of six tokens."""
    return [Encoding(token_ids=(number + 5,) * n, type_ids=(0,) * n) for n in (2, 4)]


class Store:
    """A disk store that counts its passes through the trunk."""

    def __init__(self, folder: Path, *, num_sets: int = 100) -> None:
        self._store = DiskTrunkStore(folder, max_bytes=num_sets * SET_BYTES)
        self.passes = 0

    def states(self, number: int, depth: int = 2) -> list[Tensor]:
        wanted = inputs(number)
        held = self._store.states(BACKBONE, wanted, depth=depth, progress=self._progress)
        return [held.read(trunk_source(BACKBONE, each), depth) for each in wanted]

    def _progress(self, done: int, num_inputs: int) -> None:
        self.passes += done == num_inputs


def only_file(folder: Path) -> Path:
    (stored,) = stored_states(folder / "trunk")
    return stored.path


def test_the_least_recently_used_go_when_the_budget_is_full(tmp_path: Path) -> None:
    store = Store(tmp_path, num_sets=2)
    for age, number in enumerate((0, 1)):
        store.states(number)
        newest = stored_states(tmp_path / "trunk")[-1].path
        os.utime(newest, (1000.0 + age, 1000.0 + age))
    store.states(0)  # read again, and so more recent than 1

    store.states(2)

    assert len(stored_states(tmp_path / "trunk")) == 2
    assert store.passes == 3
    store.states(0)
    assert store.passes == 3
    store.states(1)
    assert store.passes == 4


def test_states_are_neither_written_to_their_file_nor_lost_with_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    state, other = store.states(0)
    expected = [state.clone(), other.clone()]

    state.zero_()

    again = store.states(0)
    only_file(tmp_path).unlink()
    assert all_equal(again, expected)


def test_a_file_is_one_that_safetensors_reads(tmp_path: Path) -> None:
    expected = Store(tmp_path).states(0)

    packed = load_file(only_file(tmp_path))

    assert list(packed) == [STATES]
    assert torch.equal(packed[STATES], torch.cat(expected))


@pytest.mark.parametrize("damage", ["flip", "cut", "longer", "empty", "header", "no header"])
def test_a_damaged_file_is_made_again(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path)
    expected = [state.clone() for state in store.states(0)]
    path = only_file(tmp_path)
    content = bytearray(path.read_bytes())
    match damage:
        case "flip":
            content[-100] ^= 1
        case "cut":
            del content[-4:]
        case "longer":
            content += b"\0" * 4
        case "empty":
            content.clear()
        case "header":
            content[20:30] = b"x" * 10
        case _:
            del content[: -SET_BYTES or None]
    # A new file, because the old file is mapped.
    path.unlink()
    path.write_bytes(content)

    found = store.states(0)

    assert store.passes == 2
    assert all_equal(found, expected)
    assert Store(tmp_path).states(0)[0].equal(expected[0])


def test_the_file_of_another_set_is_never_read_as_this_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    expected = [state.clone() for state in store.states(0)]
    path = only_file(tmp_path)
    path.unlink()
    store.states(1)
    only_file(tmp_path).rename(path)

    found = store.states(0)

    assert store.passes == 3
    assert all_equal(found, expected)


def test_files_that_cannot_be_read_go_when_another_is_made(tmp_path: Path) -> None:
    Store(tmp_path).states(0)
    path = only_file(tmp_path)
    path.unlink()
    path.write_bytes(b"{")

    Store(tmp_path).states(1)

    assert not path.exists()


def test_a_set_above_the_budget_is_held_in_memory_and_leaves_no_file(tmp_path: Path) -> None:
    Store(tmp_path, num_sets=0).states(0)

    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")

    with raises("cache_unusable", match=r"NUNATAK_CACHE") as caught:
        Store(blocked).states(0)

    assert str(blocked) in str(caught.value)


KILLED = """
import os, signal, sys
from pathlib import Path
from doubles.backbones import tiny_backbone
from nunatak_model import Encoding
from nunatak_training.trunk import (DiskTrunkStore)
def progress(done, of):
    if done == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
wanted = [Encoding(token_ids=(5,) * n, type_ids=(0,) * n) for n in (2, 4)]
DiskTrunkStore(Path(sys.argv[1])).states(
    tiny_backbone(num_layers=4), wanted, depth=2, progress=progress
)
"""


@pytest.mark.parametrize("done", [0, 2])
def test_a_killed_pass_leaves_no_file_and_what_it_leaves_is_swept_up(
    tmp_path: Path, done: int
) -> None:
    assert ended(KILLED, str(tmp_path), str(done)).status == -9
    assert list((tmp_path / "trunk").glob(f"*{PARTIAL}"))
    store = Store(tmp_path)

    # Other states, which have another file.
    store.states(1)

    assert not list((tmp_path / "trunk").glob(f"*{PARTIAL}"))
    store.states(0)
    assert store.passes == 2


RACING = """
import sys
from pathlib import Path
from doubles.backbones import tiny_backbone
from nunatak_model import Encoding
from nunatak_training.trunk import (DiskTrunkStore)
backbone = tiny_backbone(num_layers=4)
wanted = [Encoding(token_ids=(5,) * n, type_ids=(0,) * n) for n in range(1, 60)]
passes = 0
def progress(done, of):
    global passes
    passes += done == of
print("ready", flush=True)
sys.stdin.readline()
DiskTrunkStore(Path(sys.argv[1])).states(backbone, wanted, depth=2, progress=progress)
print(passes)
"""


@pytest.mark.slow
def test_processes_that_want_the_same_set_compute_it_once(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    racers = [
        subprocess.Popen(  # noqa: S603 - our own interpreter on our own script
            [sys.executable, "-c", RACING, str(tmp_path)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"

    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    passes = [int(racer.communicate()[0]) for racer in racers]

    assert sorted(passes) == [0, 0, 1]
