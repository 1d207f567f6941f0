"""Flat in the number of tasks: 32 texts for 1 to 32 different tasks, on MiniLM.

The texts stay the same, so the difference is the cost that one more task adds to the batch. With
nunatak-ops installed, its operators run in turns with torch's own operations.
"""

from collections.abc import Mapping

from benchmarks.forward.ragged import NUM_ROWS
from benchmarks.harness.makers import BOTTLENECK, LORA
from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from benchmarks.harness.rounds import in_turns, ratios
from benchmarks.harness.workload import (
    dtypes,
    lognormal_lengths,
    mixed_run,
    random_encodings,
    random_tasks,
    served_forms,
)
from nunatak_contract.methods import Method
from nunatak_model import Backbone

COUNTS = (1, 2, 4, 8, 16, NUM_ROWS)
METHODS: dict[str, Method] = {"lora": LORA, "bottleneck": BOTTLENECK}


def main() -> None:
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
        f"{form}.n{count}": mixed_run(backbone, encodings, random_tasks(backbone, [method] * count))
        for form, backbone in forms.items()
        for count in COUNTS
    }
    times = in_turns(runs, sheet.rounds)
    unit = "times the cost of one task"
    for form in forms:
        costs = {count: ratios(times, f"{form}.n{count}", f"{form}.n1") for count in COUNTS}
        sheet.record(f"{identifier}{form}", costs[NUM_ROWS], unit=unit, goal="<= 1.05")
        for count, samples in costs.items():
            sheet.record(f"{identifier}{form}.n{count}", samples, unit=unit)


if __name__ == "__main__":
    main()
