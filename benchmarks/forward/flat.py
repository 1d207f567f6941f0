"""Flat in the number of tasks: 32 texts for 1 to 32 different tasks, on MiniLM.

The texts stay the same, so the difference is the cost that one more task adds to the batch. With
nunatak-ops installed, its operators run in turns with torch's own operations.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from benchmarks.forward.ragged import BOTTLENECK, NUM_ROWS
from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from benchmarks.harness.rounds import interleave, ratios, seconds
from benchmarks.harness.workload import (
    dtypes,
    lognormal_lengths,
    mixed,
    random_encodings,
    random_task,
    served_forms,
)
from nunatak_contract.methods import QUERY_AND_VALUE, Lora, Method
from nunatak_model import Backbone, Encoding, Row

COUNTS = (1, 2, 4, 8, 16, NUM_ROWS)
METHODS: dict[str, Method] = {
    "lora": Lora(rank=8, alpha=16.0, targets=QUERY_AND_VALUE),
    "bottleneck": BOTTLENECK,
}


def main() -> None:
    """Measure and record."""
    _, sheet = open_sheet(figures_parser(__doc__, rounds=15))
    for dtype_name, dtype in dtypes().items():
        forms = served_forms(dtype=dtype)
        for name, method in METHODS.items():
            identifier = f"forward.flat.{name}"
            suffix = "" if dtype_name == "fp32" else f".{dtype_name}"
            measure(sheet, forms, method, identifier + suffix)


def measure(sheet: Sheet, forms: Mapping[str, Backbone], method: Method, identifier: str) -> None:
    """Record the cost of a batch with 32 tasks, and with fewer, relative to one task."""
    vocabulary = forms[""].config.vocab_size
    encodings = random_encodings(lognormal_lengths(NUM_ROWS), vocabulary=vocabulary)
    runs = {
        f"{form}.n{count}": run_of(backbone, method, encodings, count)
        for form, backbone in forms.items()
        for count in COUNTS
    }
    with torch.inference_mode():
        times = interleave(
            {name: partial(seconds, run, 3) for name, run in runs.items()}, sheet.rounds
        )
    unit = "times the cost of one task"
    for form in forms:
        costs = {count: ratios(times, f"{form}.n{count}", f"{form}.n1") for count in COUNTS}
        sheet.record(f"{identifier}{form}", costs[NUM_ROWS], unit=unit, goal="<= 1.05")
        for count, samples in costs.items():
            sheet.record(f"{identifier}{form}.n{count}", samples, unit=unit)


def run_of(
    backbone: Backbone, method: Method, encodings: Sequence[Encoding], num_tasks: int
) -> partial[torch.Tensor]:
    """Return a forward of all texts, divided among `num_tasks` tasks."""
    tasks = [random_task(backbone, method, seed=seed) for seed in range(num_tasks)]
    rows = [
        Row(encoding=encoding, branch=tasks[index % num_tasks].branch)
        for index, encoding in enumerate(encodings)
    ]
    return partial(mixed, backbone, rows)


if __name__ == "__main__":
    main()
