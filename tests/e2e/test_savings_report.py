"""The savings report in small: the code of `make report` on a tiny backbone, real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.savings.results import (
    FanOutLine,
    ManyTasks,
    MemoryLine,
    Race,
    SavedCell,
    load_results,
)

ROOT = Path(__file__).parents[2]
FIGURES = {
    "report.saved.tiny.t2.n1",
    "report.slope.tiny",
    "report.fanout.t2",
    "report.throughput.single",
    "report.many.throughput_ratio_4",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_report_measures_every_part_and_writes_its_pages_and_figures(tmp_path: Path) -> None:
    out, figures = tmp_path / "out", tmp_path / "figures.jsonl"

    done = subprocess.run(  # noqa: S603 - our own script
        [
            *(sys.executable, "-m", "benchmarks.savings.report"),
            *("--extent", "smoke", "--cores", "any"),
            *("--out", str(out), "--work", str(tmp_path / "work"), "--figures", str(figures)),
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    kinds = {type(result) for result in load_results(out).values()}
    assert kinds == {FanOutLine, ManyTasks, MemoryLine, Race, SavedCell}
    recorded = {json.loads(line)["id"] for line in figures.read_text().splitlines()}
    assert recorded >= FIGURES
    assert (out / "report.html").stat().st_size > 10_000
