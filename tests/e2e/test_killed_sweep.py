"""A killed sweep continues after its last result."""

import json
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from doubles.sweeps import toy_folder
from doubles.terminals import nunatak
from nunatak_training.sweeps.results import ResultsFolder


@pytest.mark.slow
def test_killed_sweep_keeps_its_results_and_does_the_others(tmp_path: Path) -> None:
    folder, results = toy_folder(tmp_path / "toys"), tmp_path / "results"
    grid = {
        "tasks": [{"name": "tone", "data": str(folder / "toy")}],
        "methods": [{"kind": "head"}],
        "backbones": [str(folder / "backbone")],
        "seeds": list(range(40)),
        "recipe": {"epochs": 30, "max_length": 32},
    }
    file = tmp_path / "sweep.yaml"
    file.write_text(json.dumps(grid))
    command = ["sweep", "run", str(file), "--results", str(results)]
    with subprocess.Popen(  # noqa: S603 - our own interpreter; no shell
        [sys.executable, "-m", "nunatak_cli", *command], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        before = list(takewhile(lambda line: "seed 2:" not in line, process.stderr))
        process.kill()
    killed = {record.run.digest: record for record in ResultsFolder(results).records()}

    ran = nunatak(*command)

    assert len(before) == 3, before
    assert 3 <= len(killed) < 40
    assert ran.exit_code == 0
    assert f"40 runs, {len(killed)} of them done before" in ran.stderr
    found = {record.run.digest: record for record in ResultsFolder(results).records()}
    assert len(found) == 40
    assert {digest: found[digest] for digest in killed} == killed
