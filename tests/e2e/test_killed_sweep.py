"""A killed sweep continues after its last result."""

import os
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from signal import SIGINT, SIGKILL, Signals, default_int_handler, signal

import pytest

from doubles.sweeps import toy_file, toy_folder
from doubles.terminals import nunatak
from nunatak_training.sweeps.results import ResultsFolder


@pytest.mark.slow
@pytest.mark.parametrize(("jobs", "by"), [(1, SIGKILL), (2, SIGKILL), (2, SIGINT)])
def test_killed_sweep_keeps_its_results_and_does_the_others(
    tmp_path: Path, jobs: int, by: Signals
) -> None:
    folder, results = toy_folder(tmp_path / "toys"), tmp_path / "results"
    file = toy_file(folder, seeds=list(range(40)), recipe={"epochs": 30, "max_length": 32})
    signal(SIGINT, default_int_handler)  # or the sweep would ignore it in the background too
    command = ["sweep", "run", str(file), "--results", str(results), "--jobs", str(jobs)]
    with subprocess.Popen(  # noqa: S603 - our own interpreter; no shell
        [sys.executable, "-m", "nunatak_cli", *command],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        before = list(takewhile(lambda line: "seed 2:" not in line, process.stderr))
        # A terminal sends Ctrl-C to all processes; only one is killed.
        (os.killpg if by is SIGINT else os.kill)(process.pid, by)
        after = process.stderr.read()  # ends with the last process
    killed = {record.run.digest: record for record in ResultsFolder(results).records()}

    ran = nunatak(*command)

    fewest = 3 if jobs == 1 else 1  # runs that are done at the same time may end in any order
    assert len(before) >= fewest, before
    assert "Traceback" not in after
    assert fewest <= len(killed) < 40
    assert ran.exit_code == 0
    assert f"40 runs, {len(killed)} of them done before" in ran.stderr
    found = {record.run.digest: record for record in ResultsFolder(results).records()}
    assert len(found) == 40
    assert {digest: found[digest] for digest in killed} == killed
