"""The savings report in small: the code of `make report` on a tiny backbone, real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIGURES = {
    "report.saved.tiny.t2.n1",
    "report.slope.tiny",
    "report.memory.tiny.full_models_gb_of_100",
    "report.throughput.single",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_report_measures_every_part_and_appends_its_figures(tmp_path: Path) -> None:
    figures = tmp_path / "figures.jsonl"

    done = subprocess.run(  # noqa: S603 - our own script
        [
            *(sys.executable, "-m", "benchmarks.savings.report"),
            *("--extent", "smoke", "--cores", "any"),
            *("--work", str(tmp_path / "work"), "--figures", str(figures)),
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    recorded = {json.loads(line)["id"] for line in figures.read_text().splitlines()}
    assert recorded >= FIGURES
