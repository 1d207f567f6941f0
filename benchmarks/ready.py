"""Trains the ready tasks of `nunatak init --with`, and scores them on their held-out examples.

The figures of the tasks' cards: accuracy of one training, the share of the most frequent label, and
the CPU time of all trainings with the start of the program.
"""

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness.recording import figures_parser, open_sheet
from nunatak_cli.training.init import ReadyTask

PROGRAM = Path(sys.executable).with_name("nunatak")


def main() -> None:
    _, sheet = open_sheet(figures_parser(__doc__))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "project"
        nunatak("init", str(folder), *(word for it in ReadyTask for word in ("--with", it)))
        recipes = folder / "tasks.yaml"
        lines = recipes.read_text(encoding="utf-8").splitlines()
        only = [it for it in lines if not it.startswith("  urgent:")]
        recipes.write_text("\n".join(only) + "\n", encoding="utf-8")
        place = ("--registry", str(folder / "registry"), "--json", "--quiet")
        started = cpu_seconds()
        nunatak("train-all", str(recipes), *place, "--create", "--no-cache")
        unit = f"s of CPU time to train all {len(ReadyTask)}"
        sheet.record("ready.train.cpu_s", [cpu_seconds() - started], unit=unit, goal="<= 120")
        for task in ReadyTask:
            data = ("--data", str(folder / "data" / task / "test.jsonl"))
            found = nunatak("evaluate", task, *data, *place)
            share, num = found["majority"]["share"], found["num_examples"]
            unit = f"of {num} held-out examples"
            sheet.record(f"ready.{task}.accuracy", [found["metrics"]["accuracy"]], unit=unit)
            sheet.record(f"ready.{task}.majority", [share], unit=f"{unit}, always one label")


def cpu_seconds() -> float:
    """Return the CPU time of the programs that have ended, which a busy machine hardly raises."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def nunatak(*words: str) -> dict[str, Any]:
    command = (str(PROGRAM), *words, *(() if "--json" in words else ("--json",)))
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True)  # noqa: S603 - our own
    return json.loads(ran.stdout)


if __name__ == "__main__":
    main()
