"""Memory: what one more task takes, and what a batch takes while it runs, on MiniLM.

A task's share is the slope of the process's resident memory over many tasks, each loaded from
bytes as a server loads it and asked once. It holds everything: Python objects, what the allocator
rounds up, and whatever a forward keeps. Each measurement has a fresh process.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression
from typing import Any

import psutil
import torch
from ragged import BOTTLENECK
from recording import Sheet, open_sheet
from workload import DTYPES, dtypes, random_branch, random_encodings

from nunatak_model import (
    Backbone,
    Branch,
    HeadOnly,
    Lora,
    Method,
    Row,
    TopK,
    build_branch,
    convert_branch,
    forward,
    load_backbone,
    tensors_from_bytes,
    tensors_to_bytes,
)

WARM_UP = 8
"""Tasks that are loaded before the slope begins, while the allocator still grows its pools."""
ROW_LENGTHS, TOKEN_BUDGETS = (16, 32, 128), (256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A method and how many tasks of it make a slope."""

    method: Method
    num_tasks: int


SERIES = {
    "topk": Series(method=TopK(num_layers=2), num_tasks=24),
    "lora": Series(method=Lora(), num_tasks=256),
    "bottleneck": Series(method=BOTTLENECK, num_tasks=128),
}


def main() -> None:
    """Measure and record; or, started with a series and a dtype, measure one slope."""
    match sys.argv[1:]:
        case ["slope", name, dtype_name]:
            backbone = load_backbone(dtype=DTYPES[dtype_name])
            print(bytes_per_parameter_byte(backbone, SERIES[name]))
        case _:
            sheet = open_sheet(__doc__, rounds=3)
            for name in SERIES:
                for dtype_name in dtypes():
                    record_slope(sheet, name, dtype_name)
            record_activations(sheet)


def record_slope(sheet: Sheet, name: str, dtype_name: str) -> None:
    """Resident bytes per further task over its parameter bytes."""
    command = [sys.executable, str(Path(__file__)), "slope", name, dtype_name]
    samples = [
        float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)  # noqa: S603 - this very file
        for _ in range(sheet.rounds)
    ]
    suffix = "" if dtype_name == "fp32" else f".{dtype_name}"
    unit = "resident bytes per further task over its parameter bytes"
    sheet.record(f"forward.bytes_per_task.{name}{suffix}", samples, unit=unit, goal="<= 1.02")


def bytes_per_parameter_byte(backbone: Backbone, series: Series) -> float:
    """Slope of resident memory over the bytes of the parameters of all tasks so far."""
    model = random_branch(backbone, series.method, seed=0)
    # Tasks are stored in float32, whatever they are served in.
    data = tensors_to_bytes({name: it.float() for name, it in model.parameters.items()})
    (encoding,) = random_encodings([16], vocabulary=backbone.config.vocab_size)
    process, branches = psutil.Process(), list[Branch]()
    sizes, resident, total = list[float](), list[float](), 0
    for number in range(WARM_UP + series.num_tasks):
        stored = build_branch(model.spec, backbone.config, tensors_from_bytes(data))
        branch = convert_branch(
            stored, backbone.config, dtype=backbone.dtype, device=backbone.device
        )
        with torch.inference_mode():
            forward(backbone, [Row(encoding=encoding, branch=branch)])
        branches.append(branch)
        total += branch.num_bytes
        if number >= WARM_UP:
            sizes.append(float(total))
            resident.append(float(process.memory_info().rss))
    return linear_regression(sizes, resident).slope


def record_activations(sheet: Sheet) -> None:
    """Peak of what one forward allocates, over the number of its tokens."""
    backbone = load_backbone()
    for length in ROW_LENGTHS:
        branches = [random_branch(backbone, method, seed=1) for method in (HeadOnly(), Lora())]
        for budget in TOKEN_BUDGETS:
            encodings = random_encodings(
                [length] * (budget // length), vocabulary=backbone.config.vocab_size
            )
            rows = [
                Row(encoding=encoding, branch=branches[index % len(branches)])
                for index, encoding in enumerate(encodings)
            ]
            peak = peak_bytes(backbone, rows) / 2**20
            sheet.record(f"forward.activations.len{length}.t{budget}", [peak], unit="MiB at peak")


def peak_bytes(backbone: Backbone, rows: list[Row]) -> int:
    """Most bytes that one forward holds at once beyond what it found, by the profiler."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with (
        torch.inference_mode(),
        torch.profiler.profile(activities=activities, profile_memory=True) as profile,
    ):
        forward(backbone, rows)
    # The profiler has no public list of single allocations in the order of time.
    results: Any = profile.profiler.kineto_results  # pyright: ignore[reportOptionalMemberAccess]
    changes = [event for event in results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


if __name__ == "__main__":
    main()
