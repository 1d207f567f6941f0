"""Training in separate processes, killed with SIGKILL, and started again."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, sys
from pathlib import Path
from doubles.backbones import tiny_backbone
from doubles.examples import RecordingReport, toy_data
from nunatak_contract.methods import TopK
from nunatak_model import tensors_to_bytes
from nunatak_training.fitting import (fit_task)
from nunatak_training.loop.checkpoint import (SavedRun)
from nunatak_training.recipes import (default_recipe)
from nunatak_training.trunk import (DiskTrunkStore)

folder, dies_at = Path(sys.argv[1]), int(sys.argv[2])

class Mortal(RecordingReport):
    def stepped(self, *, loss):
        super().stepped(loss=loss)
        if self.num_resumed + len(self.losses) == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

backbone, data, report = tiny_backbone(num_layers=3), toy_data(num_train=30), Mortal()
regularizer = {"name": "graddrop-epoch"}
changes = {"epochs": 5, "batch_size": 8, "max_length": 32, "regularizer": regularizer}
recipe = default_recipe(TopK(num_layers=2), changes=changes)
folder.mkdir(exist_ok=True)
# On a clock that stands still a checkpoint is always due.
checkpoint = SavedRun(folder / "run.safetensors", interval=0.0, clock=lambda: 0.0)
trained = fit_task(data, recipe, backbone, report=report, trunks=DiskTrunkStore(folder),
                   checkpoint=checkpoint)
(folder / "weights").write_bytes(tensors_to_bytes(trained.parameters))
print(report.num_resumed, trained.best_epoch)
"""
NUM_STEPS = 5 * 4
NEVER = 0


def run(folder: Path, *, dies_at: int) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(  # noqa: S603 - our own interpreter on our own script
        [sys.executable, "-c", SCRIPT, str(folder), str(dies_at)],
        env=environment,
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)  # four processes that import torch, also on a slow machine
def test_a_run_killed_at_random_steps_gives_the_weights_of_one_that_was_not(
    tmp_path: Path,
) -> None:
    steps = sorted(random.Random(5).sample(range(1, NUM_STEPS + 1), k=2))
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for step in steps:
        assert run(killed, dies_at=step).returncode == -signal.SIGKILL
        assert not (killed / "weights").exists()

    resumed, _, best = run(killed, dies_at=NEVER).stdout.strip().partition(" ")

    assert int(resumed) == steps[-1] - 1
    assert run(whole, dies_at=NEVER).stdout.strip() == f"0 {best}"
    assert (killed / "weights").read_bytes() == (whole / "weights").read_bytes()
