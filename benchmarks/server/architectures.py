"""Every architecture from `backbone add` to HTTP, compared with transformers' own pipeline.

A tiny random backbone of each architecture is added. Six methods train a task each, and a server
answers random texts for all six tasks in one call. Five of the tasks are exported. The figure is
the largest difference of a score from transformers' text classification pipeline over the exports.

    PYTHONPATH=tests OMP_NUM_THREADS=1 python -m benchmarks.server.architectures
"""

import asyncio
import os
import tempfile
from pathlib import Path

from benchmarks.harness.recording import figures_parser, open_sheet
from doubles.architecture_walk import COMPARED, walk
from doubles.backbones import FAMILIES


def main() -> None:
    """Measure and record."""
    parser = figures_parser(__doc__)
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("families", nargs="*", default=[*FAMILIES])
    options, sheet = open_sheet(parser)
    unit = f"of a score, {options.texts} texts and {len(COMPARED)} methods"
    for family in options.families:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_DATA_HOME"] = folder
            differences = asyncio.run(walk(family, options.texts, Path(folder) / "walk"))
        worst = max(differences.values())
        sheet.record(f"server.architecture.{family}", [worst], unit=unit, goal="<= 1e-4")


if __name__ == "__main__":
    main()
