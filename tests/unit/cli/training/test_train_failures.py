"""An error in data or in a run is one line with its cause, and nothing is published."""

from pathlib import Path

import pytest

from doubles.backbones import save_tiny_backbone
from doubles.examples import rows_of, toy_examples, write_jsonl
from doubles.terminals import Ran, nunatak
from nunatak_registry import Registry

GOOD = rows_of(toy_examples(12))


def trained(folder: Path, *options: str) -> Ran:
    save_tiny_backbone(folder / "backbone", num_layers=2)
    place = ("--registry", str(folder / "registry"), "--backbone", str(folder / "backbone"))
    return nunatak("train", "--task", "tone", "--max-length", "16", "--create", *place, *options)


def assert_refused(ran: Ran, folder: Path, code: str, *parts: str) -> None:
    assert ran.exit_code == 1
    assert ran.stderr.startswith(f"error [{code}]: ")
    assert ran.stderr.count("\n") == 1
    for part in parts:
        assert part in ran.stderr
    with Registry.open(str(folder / "registry")) as registry:
        assert registry.tasks() == []


def test_a_label_of_control_characters_is_refused_before_training(tmp_path: Path) -> None:
    rows = [{**row, "label": f"{row['label']}\x1b[31m"} for row in GOOD]
    data = write_jsonl(tmp_path / "train.jsonl", rows)

    ran = trained(tmp_path, "--data", str(data))

    assert_refused(ran, tmp_path, "unpublishable", "head.labels.0", r"got 'early\x1b[31m'")


def test_a_loss_that_stops_being_a_number_leaves_no_version_and_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUNATAK_CACHE", str(tmp_path / "cache"))
    data = write_jsonl(tmp_path / "train.jsonl", GOOD)

    # Updates so large that their products are NaN.
    ran = trained(tmp_path, "--data", str(data), "--method", "lora", "--set", "alpha=1e38")

    assert_refused(ran, tmp_path, "training_diverged", "step", "lower the learning rate")
    assert not list((tmp_path / "cache" / "checkpoints").glob("*.safetensors"))
