"""The savings report in small: the code of `make report` on a tiny backbone, real processes."""

import json
import os
import subprocess
import sys
from itertools import cycle
from pathlib import Path

import pytest

from benchmarks.harness.makers import TaskPlan, draft
from benchmarks.harness.workload import minilm_folder
from benchmarks.papers.elsa_memory import TOLERANCE, measure
from benchmarks.papers.elsa_page import memory_cells
from nunatak_contract.enums import Reads
from nunatak_contract.methods import TopK
from nunatak_model import load_backbone
from nunatak_registry import Registry

ROOT = Path(__file__).parents[2]
FIGURES = {
    "report.slope.tiny",
    "report.memory.tiny.full_models_gb_of_100",
    "report.throughput.single",
}
TASKS, OWN = 12, 2
"""So many tasks that some megabytes of the runtime do not count."""


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


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_measured_share_and_the_formula_agree(tmp_path: Path) -> None:
    wanted = [
        TaskPlan(name=f"toy{number}-k{OWN}", method=TopK(num_layers=OWN), seed=number)
        for number in range(TASKS)
    ]
    backbone = load_backbone()
    with Registry.open(tmp_path / "registry") as registry:
        for plan, reads in zip(wanted, cycle(Reads), strict=False):
            made = draft(plan, backbone)
            registry.publish(made.manifest.model_copy(update={"reads": reads}), made.blobs)

    memory = measure(
        minilm_folder(),
        tmp_path / "registry",
        [plan.name for plan in wanted],
        work=tmp_path / "work",
        copied=(),
        settling_s=6.0,
    )

    assert memory.saved_private(OWN) == pytest.approx(memory.formula(OWN), abs=TOLERANCE)
    assert memory.ledger[OWN] == pytest.approx(memory.formula(OWN), abs=0.005)
    assert memory.saved_mapped(OWN) < memory.saved_private(OWN)
    assert f"{memory.saved_private(OWN):.1%}" in memory_cells(memory, OWN)
