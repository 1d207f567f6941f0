"""Laws of the files on disk: whole or absent, within the budget, also with other processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from doubles.backbones import tiny_backbone
from doubles.processes import ended
from doubles.refusals import raises
from nunatak_model import Encoding, trunk_source
from nunatak_training.cache import PARTIAL, stored_states
from nunatak_training.trunk import STATES, DiskTrunkStore

BACKBONE = tiny_backbone(num_layers=3)
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


def test_states_stay_readable_after_their_file_is_removed(tmp_path: Path) -> None:
    before = Store(tmp_path).states(0)
    copies = [state.clone() for state in before]

    only_file(tmp_path).unlink()

    assert all(torch.equal(state, copy) for state, copy in zip(before, copies, strict=True))


def test_writing_into_a_state_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    store = Store(tmp_path)
    state = store.states(0)[0]
    expected = state.clone()

    state.zero_()

    assert torch.equal(store.states(0)[0], expected)


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
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
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
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


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
    tiny_backbone(num_layers=3), wanted, depth=2, progress=progress
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
backbone = tiny_backbone(num_layers=3)
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
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
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
