from pathlib import Path

from doubles.backbones import tiny_backbone
from nunatak_model import Encoding
from nunatak_training.cache import cache_contents, clear_cache
from nunatak_training.loop.checkpoint import SavedState, held_checkpoint
from nunatak_training.report import Report
from nunatak_training.trunk import DiskTrunkStore


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    contents = cache_contents(tmp_path / "absent")

    assert (contents.states, contents.checkpoints, contents.num_bytes) == ((), (), 0)


def test_clearing_leaves_only_the_checkpoint_that_is_in_use(tmp_path: Path) -> None:
    wanted = [Encoding(token_ids=(5, 6), type_ids=(0, 0))]
    backbone, progress = tiny_backbone(num_layers=2), Report().prepared
    DiskTrunkStore(tmp_path).states(backbone, wanted, depth=1, progress=progress)
    snapshot = SavedState(tensors={}, facts="{}")
    with held_checkpoint("killed", tmp_path) as checkpoint:
        checkpoint.save(snapshot)
    with held_checkpoint("running", tmp_path) as checkpoint:
        checkpoint.save(snapshot)
        before = cache_contents(tmp_path)

        after = clear_cache(tmp_path)

    assert (len(before.states), len(before.checkpoints)) == (1, 2)
    assert before.num_bytes > 2 * 32 * 4
    assert after.states == ()
    assert [stored.path.stem for stored in after.checkpoints] == ["running"]
    assert after.num_bytes > 0
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"running.safetensors", "running.lock"}


def test_what_a_kill_amid_writing_left_is_counted_and_cleared(tmp_path: Path) -> None:
    with held_checkpoint("killed", tmp_path):
        (tmp_path / "checkpoints" / "killed.safetensors.partial").write_bytes(b"x" * 100)

    before = cache_contents(tmp_path)
    after = clear_cache(tmp_path)

    assert before.num_bytes == 100
    assert (after.checkpoints, after.num_bytes) == ((), 0)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_states_that_cannot_be_read_are_cleared(tmp_path: Path) -> None:
    wanted = [Encoding(token_ids=(5, 6), type_ids=(0, 0))]
    backbone, progress = tiny_backbone(num_layers=2), Report().prepared
    DiskTrunkStore(tmp_path).states(backbone, wanted, depth=1, progress=progress)
    (stored,) = cache_contents(tmp_path).states
    stored.path.unlink()
    stored.path.write_text("{")

    clear_cache(tmp_path)

    assert list((tmp_path / "trunk").iterdir()) == []
