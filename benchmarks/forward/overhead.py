"""Overhead: the share of planning and packing in a forward, and the cost of one short request.

Clocks around the functions that plan and pack measure the planning. A forward calls each of these
functions a few times. A page of profiles shows the rest of the time.
"""

import cProfile
import io
import pstats
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import torch

from benchmarks.forward.ragged import NUM_ROWS, mixed, random_requests, rows_of
from benchmarks.forward.rivals import answer_alone, dedicated_model, load_encoder
from benchmarks.harness.recording import Sheet, figures_parser, hardware, open_sheet
from benchmarks.harness.rounds import local, race, ratios, tolerance
from benchmarks.harness.workload import (
    dtypes,
    minilm_folder,
    random_encodings,
    random_task,
    served_backbone,
)
from nunatak_contract.methods import QUERY_AND_VALUE, Lora, Method, TopK
from nunatak_model import Backbone

MODULES = (
    "nunatak_model.forward",
    "nunatak_model.ops.attention",
    "nunatak_model.architectures.bert",
)
"""Modules through whose names a forward calls the functions below."""
PLANNING = (
    "_distinct",
    "_traits",
    "plan_batch",
    "flattened",
    "_enter_stage",
    "plan_attention",
    "layer_spans",
    "mix_layer",
)
"""Functions that a forward calls to plan and pack; none of them calls another one."""
SINGLE_TOKENS, SINGLE_REPEATS = 16, 15
SINGLE: dict[str, Method] = {
    "topk": TopK(num_layers=2),
    "lora": Lora(rank=8, alpha=16.0, targets=QUERY_AND_VALUE),
}
PROFILE_RUNS, PROFILE_ROWS = 5, 16
PAGE_HEAD = """# Where a forward spends its time

32 texts of log-normal lengths with 32 LoRA tasks on MiniLM, {dtype}, {threads} threads; made by
`{command}` on {hardware}. Times are means of {runs} forwards, in milliseconds.
"""


def main() -> None:
    """Measure, record and write the profiles."""
    _, sheet = open_sheet(figures_parser(__doc__, rounds=15))
    pages = list[str]()
    for name, dtype in dtypes().items():
        backbone = served_backbone(dtype=dtype)
        rows = rows_of(
            *random_requests(
                backbone, [Lora(rank=8, alpha=16.0, targets=QUERY_AND_VALUE)] * NUM_ROWS
            )
        )
        run = partial(mixed, backbone, rows)
        with torch.inference_mode():
            run()
            record_planning(sheet, run, name)
            pages.append(profile_page(sheet, run, name))
        record_single(sheet, backbone, name)
    (sheet.file.parent / "forward-profile.md").write_text("\n".join(pages), encoding="utf-8")


def record_planning(sheet: Sheet, run: Callable[[], object], dtype_name: str) -> None:
    """Record the share of planning and packing in the forward, run by run."""
    shares = list[float]()
    with clocked(PLANNING) as spent:
        for _ in range(3 * sheet.rounds):
            spent.clear()
            started = time.perf_counter()
            run()
            shares.append(sum(spent) / (time.perf_counter() - started))
    suffix = "" if dtype_name == "fp32" else f".{dtype_name}"
    unit = f"of the forward of {NUM_ROWS} rows"
    sheet.record(f"forward.overhead.planning{suffix}", shares, unit=unit, goal="<= 0.05")


@contextmanager
def clocked(names: Sequence[str]) -> Generator[list[float]]:
    """Collect the seconds of each call of these functions."""
    modules = [sys.modules[name] for name in MODULES if name in sys.modules]
    originals = [
        (module, name, getattr(module, name))
        for module in modules
        for name in names
        if hasattr(module, name)
    ]
    missing = set(names) - {name for _, name, _ in originals}
    if missing:
        raise SystemExit(
            f"a forward calls no {', '.join(sorted(missing))}; bring PLANNING and MODULES of this "
            "benchmark up to date with the functions that plan and pack"
        )
    spent = list[float]()
    for module, name, original in originals:
        setattr(module, name, timed(original, spent))
    try:
        yield spent
    finally:
        for module, name, original in originals:
            setattr(module, name, original)


def timed(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """Return the function, changed so that it appends the seconds of each call to `spent`."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever it takes
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent.append(time.perf_counter() - started)

    return run


def record_single(sheet: Sheet, backbone: Backbone, dtype_name: str) -> None:
    """Compare a short request to one task with the bare forward of its transformers model."""
    encodings = random_encodings([SINGLE_TOKENS], vocabulary=backbone.config.vocab_size)
    encoder = load_encoder(minilm_folder(), backbone.dtype)
    allowed = tolerance(dtype_name)
    for name, method in SINGLE.items():
        task = random_task(backbone, method, seed=0)
        rows = rows_of(encodings, [task])
        answers = {
            "nunatak": partial(mixed, backbone, rows),
            "transformers": partial(answer_alone, [dedicated_model(encoder, task)], encodings),
        }
        times = race(
            [
                local(label, answer, tolerance=allowed, repeats=SINGLE_REPEATS)
                for label, answer in answers.items()
            ],
            rounds=sheet.rounds,
        )
        parts = ["forward.overhead.single"]
        parts += [name] if name != "topk" else []
        parts += [dtype_name] if dtype_name != "fp32" else []
        unit, identifier = "times the bare transformers forward", ".".join(parts)
        samples = ratios(times, "nunatak", "transformers")
        sheet.record(identifier, samples, unit=unit, goal="<= 1.1")
        sheet.record_times(identifier, times)


def profile_page(sheet: Sheet, run: Callable[[], object], dtype_name: str) -> str:
    """Return tables of tensor operations and of Python functions."""
    head = PAGE_HEAD.format(
        dtype=dtype_name,
        threads=torch.get_num_threads(),
        command=sheet.command,
        hardware=hardware(),
        runs=PROFILE_RUNS,
    )
    operations = table("operation", operation_times(run))
    functions = table("Python function, without what it calls", function_times(run))
    return f"{head}\n{operations}\n{functions}"


def table(title: str, lines: Iterator[tuple[str, int, float]]) -> str:
    """Return the slowest lines of a profile: name, calls per forward, milliseconds per forward."""
    longest = sorted(lines, key=lambda line: -line[2])[:PROFILE_ROWS]
    body = "".join(f"| `{name}` | {calls} | {spent:.2f} |\n" for name, calls, spent in longest)
    return f"| {title} | calls | ms |\n|---|---|---|\n{body}"


def operation_times(run: Callable[[], object]) -> Iterator[tuple[str, int, float]]:
    """Yield the tensor operations by torch's profiler, without the time of their inner calls."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(PROFILE_RUNS):
            run()
    averages: Any = profile.key_averages()
    for event in averages:
        spent = event.self_cpu_time_total / 1e3 / PROFILE_RUNS
        yield event.key, event.count // PROFILE_RUNS, spent


def function_times(run: Callable[[], object]) -> Iterator[tuple[str, int, float]]:
    """Yield the Python functions by cProfile, which overstates the time of many short calls."""
    profiler = cProfile.Profile()
    with profiler:
        for _ in range(PROFILE_RUNS):
            run()
    stats: Any = pstats.Stats(profiler, stream=io.StringIO())
    for (file, _, name), (_, calls, spent, _, _) in stats.stats.items():
        place = "" if file == "~" else f"{file.rpartition('/')[2]}:"
        yield f"{place}{name}", calls // PROFILE_RUNS, 1e3 * spent / PROFILE_RUNS


if __name__ == "__main__":
    main()
