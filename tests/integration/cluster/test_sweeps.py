"""A run of a sweep gives the same weights on a cluster as alone."""

import json
from pathlib import Path

import pytest

from doubles.sweeps import toy_folder, toy_runs
from doubles.terminals import nunatak
from nunatak_training.sweeps.results import Finished, ResultsFolder
from nunatak_training.sweeps.running import RunContext

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nodes"), pytest.mark.timeout(400)]


def test_runs_on_a_cluster_give_the_weights_of_runs_alone(tmp_path: Path) -> None:
    from nunatak_cluster.runs import OnRay  # noqa: PLC0415 - as below
    from nunatak_cluster.session import joined  # noqa: PLC0415 - imports Ray, in two seconds

    runs = toy_runs(toy_folder(tmp_path), seeds=[1, 2])
    alone = {it.run.digest: it.outcome for it in map(RunContext().run, runs)}

    with joined("ray"):
        found = {it.run.digest: it.outcome for it in OnRay(checkpoints=tmp_path / "results")(runs)}

    assert found == alone
    digests = [it.weights_digest for it in found.values() if isinstance(it, Finished)]
    assert len(set(digests)) == len(runs) == len(digests)
    assert not list((tmp_path / "results").rglob("*.safetensors"))


def test_the_command_prints_what_each_run_cost(tmp_path: Path) -> None:
    folder, results = toy_folder(tmp_path / "toys"), tmp_path / "results"

    grid = {
        "tasks": [{"name": "tone", "data": str(folder / "toy")}],
        "methods": [{"kind": "head"}],
        "backbones": [str(folder / "backbone")],
        "recipe": {"epochs": 1, "max_length": 32},
    }
    file = tmp_path / "sweep.yaml"
    file.write_text(json.dumps(grid))

    ran = nunatak(
        *("sweep", "run", str(file), "--results", str(results), "--on", "ray"),
        *("--set", "seeds=[1,2]"),
    )

    assert ran.exit_code == 0, ran.stderr
    assert "CPU time" in ran.stdout
    assert "2 runs, 0 failed" in ran.stdout
    assert len(ResultsFolder(results).records()) == 2
