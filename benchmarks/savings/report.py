"""The savings report: what one shared backbone saves in deployment, part by part, then the pages.

Each part is measured alone and kept as JSON below `--out`. Arguments choose single parts. The part
`page` draws the pages again, also for runs that `nunatak loadtest run --out` kept below `--out`.
Each part appends its figures when it ends.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.harness.pinning import cores_of, keep_off
from benchmarks.harness.recording import FIGURES, ROOT, Sheet
from benchmarks.savings.desk import FULL, SMOKE, Desk
from benchmarks.savings.page.writing import write_report
from benchmarks.savings.parts import fan_out, many, memory, races, saved

OUT = FIGURES.parent / "savings"
WORK = ROOT / ".bench" / "savings"
EXTENTS = {"full": FULL, "smoke": SMOKE}


def page(desk: Desk) -> None:
    """Write HTML, Markdown, JSON and plots of all existing results."""
    for path in write_report(desk.out, desk.out, price_per_hour=desk.price_per_hour):
        print(path)


PARTS: Mapping[str, Callable[[Desk], None]] = {
    "saved": saved,
    "memory": memory,
    "fanout": fan_out,
    "race": races,
    "many": many,
    "page": page,
}


def main() -> None:
    """Measure, record and draw the requested parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="|".join(PARTS))
    parser.add_argument("--extent", choices=EXTENTS, default="full")
    parser.add_argument("--rounds", type=int, help="of what is measured in turns")
    parser.add_argument("--cores", default="0", help="of the systems, such as 0,1; `any`: no pin")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--figures", type=Path, default=FIGURES, help="file to append figures to")
    parser.add_argument("--price", type=float, default=0.10, help="of the machine, per hour")
    parser.add_argument("--resume", action="store_true", help="leave out what is there already")
    options = parser.parse_args()
    torch.set_num_threads(1)
    extent = EXTENTS[options.extent]
    if options.rounds is not None:
        extent = replace(extent, rounds=options.rounds)
    cores = cores_of(options.cores)
    keep_off(cores)
    for name in options.parts:
        command = f"python -m benchmarks.savings.report {name} --rounds {extent.rounds}"
        sheet = Sheet(command=command, file=options.figures, rounds=extent.rounds)
        desk = Desk(
            work=options.work,
            out=options.out,
            sheet=sheet,
            extent=extent,
            cores=cores,
            price_per_hour=options.price,
            resumes=options.resume,
        )
        PARTS[name](desk)


if __name__ == "__main__":
    main()
