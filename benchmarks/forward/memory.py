"""Memory of one more task, and of a batch while it runs, on MiniLM.

The memory of a task is the slope over many tasks in a fresh process. Each task is loaded from bytes
as in a server, and run once. The benchmark counts two things. The bytes of all live tensors include
the memory on the device and the tensors that a forward keeps. The resident memory of the process
also includes Python's objects and the allocator's rounding.
"""

import gc
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from statistics import linear_regression
from typing import Any

import psutil
import torch
from torch import Tensor

from benchmarks.forward.ragged import BOTTLENECK
from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from benchmarks.harness.workload import (
    DTYPES,
    dtypes,
    random_encodings,
    random_task,
    served_backbone,
    served_task,
)
from nunatak_contract.methods import QUERY_AND_VALUE, HeadOnly, Lora, Method, TopK
from nunatak_model import Backbone, Branch, Row, forward, tensors_from_bytes, tensors_to_bytes

WARM_UP = 8
"""Tasks that are loaded before the slope begins, while the allocator still grows its pools."""
ROW_LENGTHS, TOKEN_BUDGETS = (16, 32, 128), (256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A method and the numbers of tasks for its slope."""

    method: Method
    num_tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Slopes:
    """Bytes of memory per byte of a task's parameters."""

    tensors: float
    resident: float


SERIES = {
    "topk": Series(method=TopK(num_layers=2), num_tasks=24),
    "lora": Series(method=Lora(rank=8, alpha=16.0, targets=QUERY_AND_VALUE), num_tasks=256),
    "bottleneck": Series(method=BOTTLENECK, num_tasks=128),
}


def main() -> None:
    """Measure and record all slopes; with a series and a dtype as arguments, measure one slope."""
    match sys.argv[1:]:
        case ["slope", name, dtype_name]:
            backbone = served_backbone(dtype=DTYPES[dtype_name])
            print(json.dumps(asdict(measure_slopes(backbone, SERIES[name]))))
        case _:
            _, sheet = open_sheet(figures_parser(__doc__, rounds=3))
            for name in SERIES:
                for dtype_name in dtypes():
                    record_slope(sheet, name, dtype_name)
            record_activations(sheet)


def record_slope(sheet: Sheet, name: str, dtype_name: str) -> None:
    """Record the bytes that a task adds, on the device and to the process, per parameter byte."""
    command = [sys.executable, "-m", "benchmarks.forward.memory", "slope", name, dtype_name]
    slopes = [
        Slopes(**json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))  # noqa: S603 - this very file
        for _ in range(sheet.rounds)
    ]
    suffix = "" if dtype_name == "fp32" else f".{dtype_name}"
    identifier, unit = f"forward.bytes_per_task.{name}{suffix}", "parameter bytes of a further task"
    sheet.record(identifier, [it.tensors for it in slopes], unit=unit, goal="<= 1.02")
    sheet.record(f"{identifier}.resident", [it.resident for it in slopes], unit=unit)


def measure_slopes(backbone: Backbone, series: Series) -> Slopes:
    """Load tasks and run each; return the memory that they add, per byte of their parameters."""
    task = random_task(backbone, series.method, seed=0)
    task_bytes = sum(tensor.nbytes for tensor in task.parameters.values())
    # Tasks are stored in float32, whatever the number format of serving.
    data = tensors_to_bytes({name: it.float() for name, it in task.parameters.items()})
    (encoding,) = random_encodings([16], vocabulary=backbone.config.vocab_size)
    process, branches = psutil.Process(), list[Branch]()
    sizes, resident = list[float](), list[float]()
    before = 0
    for number in range(WARM_UP + series.num_tasks):
        if number == WARM_UP:
            before = tensor_bytes()
        branch = served_task(task.branch.spec, tensors_from_bytes(data), backbone).branch
        with torch.inference_mode():
            forward(backbone, [Row(encoding=encoding, branch=branch)])
        branches.append(branch)
        sizes.append(float(task_bytes * len(branches)))
        resident.append(float(process.memory_info().rss))
    added = tensor_bytes() - before
    return Slopes(
        tensors=added / (task_bytes * series.num_tasks),
        resident=linear_regression(sizes[WARM_UP:], resident[WARM_UP:]).slope,
    )


def tensor_bytes() -> int:
    """Return the bytes of all live tensors, with each storage counted once."""
    tensors = [it for it in gc.get_objects() if issubclass(type(it), Tensor)]
    return sum(dict(map(storage, tensors)).values())


def storage(tensor: Tensor) -> tuple[int, int]:
    """Return the identity and the bytes of a tensor's storage, or of a packed tensor itself."""
    if tensor.is_mkldnn:
        return id(tensor), tensor.numel() * tensor.element_size()
    held = tensor.untyped_storage()
    return held.data_ptr(), held.nbytes()


def record_activations(sheet: Sheet) -> None:
    """Record the peak memory that one forward allocates, for several numbers of tokens."""
    backbone = served_backbone(dtype=torch.float32)
    for length in ROW_LENGTHS:
        tasks = [
            random_task(backbone, method, seed=1)
            for method in (HeadOnly(), Lora(rank=8, alpha=16.0, targets=QUERY_AND_VALUE))
        ]
        for budget in TOKEN_BUDGETS:
            encodings = random_encodings(
                [length] * (budget // length), vocabulary=backbone.config.vocab_size
            )
            rows = [
                Row(encoding=encoding, branch=tasks[index % len(tasks)].branch)
                for index, encoding in enumerate(encodings)
            ]
            peak = peak_bytes(backbone, rows) / 2**20
            sheet.record(f"forward.activations.len{length}.t{budget}", [peak], unit="MiB at peak")


def peak_bytes(backbone: Backbone, rows: list[Row]) -> int:
    """Return the most bytes that one forward has allocated at once, by the profiler."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with (
        torch.inference_mode(),
        torch.profiler.profile(activities=activities, profile_memory=True) as profile,
    ):
        forward(backbone, rows)
    # The profiler has no public list of single allocations in order of time.
    results: Any = profile.profiler.kineto_results  # pyright: ignore[reportOptionalMemberAccess]
    changes = [event for event in results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


if __name__ == "__main__":
    main()
