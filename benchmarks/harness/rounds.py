"""Races: several systems answer the same requests, in turns.

One round runs every system once, in shuffled order, so that other load on the machine slows all
systems alike. Ratios are taken within a round. Before a race every system must give the same
answers, because the speed of a wrong answer means nothing.
"""

import random
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import Tensor

FP32_TOLERANCE, BF16_TOLERANCE, INT8_TOLERANCE = 1e-3, 0.1, 0.3
"""Largest difference from the reference, as a share of its largest logit."""

CPU_TIME = "CPU time"

Times = Mapping[str, Sequence[float]]
"""Seconds of each round, by system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One way to answer the requests of a race."""

    name: str
    answer: Callable[[], Tensor]
    """Returns float32 logits [requests, labels] in order, at least of the first requests."""
    seconds: Callable[[], float]
    """Answers all requests once and returns the seconds, by the system's own clock."""
    tolerance: float = FP32_TOLERANCE


class DisagreementError(Exception):
    """Two systems of a race answer differently, so they do not compute the same thing."""


def tolerance(dtype_name: str) -> float:
    """Return the largest allowed difference of two systems in a number format, as a name."""
    return {"fp32": FP32_TOLERANCE, "bf16": BF16_TOLERANCE, "int8": INT8_TOLERANCE}[dtype_name]


def local(name: str, answer: Callable[[], Tensor], *, tolerance: float = FP32_TOLERANCE) -> System:
    """Return a system of this process, whose time is the median of a few runs."""
    return System(name=name, answer=answer, seconds=partial(seconds, answer), tolerance=tolerance)


def clock_name() -> str:
    """Name the time that `seconds` measures, for the units of figures."""
    return "wall time" if torch.get_num_threads() > 1 else CPU_TIME


def seconds(run: Callable[[], object], repeats: int = 3) -> float:
    """Median time of a few runs: wall time, or on one thread the CPU time of this process.

    Other load on the machine does not change the CPU time.
    """
    clock = time.process_time if clock_name() == CPU_TIME else time.perf_counter
    samples = list[float]()
    for _ in range(repeats):
        started = clock()
        run()
        samples.append(clock() - started)
    return median(samples)


def require_one_thread(parser: ArgumentParser) -> None:
    """Refuse to go on with several threads: a figure of CPU time would be one of wall time."""
    if (found := torch.get_num_threads()) != 1:
        parser.error(f"expected OMP_NUM_THREADS=1, which counts CPU time, got {found} threads")


def race(
    systems: Sequence[System],
    *,
    rounds: int,
    clocks: Mapping[str, Callable[[], float]] | None = None,
    seed: int = 0,
) -> Times:
    """Check that all systems agree with the first, then let them run in turns.

    One round warms up. `clocks` time work without answers, once per round.
    """
    with torch.inference_mode():
        check_agreement(systems)
        runs = {system.name: system.seconds for system in systems} | dict(clocks or {})
        return interleave(runs, rounds, seed=seed)


def check_agreement(systems: Sequence[System]) -> None:
    expected = systems[0].answer()
    scale = expected.abs().max().item()
    for system in systems[1:]:
        answer = system.answer()
        difference = (answer - expected[: len(answer)]).abs().max().item() / scale
        # `not <=` makes NaN a disagreement, too.
        if not difference <= system.tolerance:
            raise DisagreementError(
                f"{system.name} differs from {systems[0].name} by {difference:.2g} of the largest "
                f"logit, at most {system.tolerance:g} is expected; compare their weights and inputs"
            )


def interleave(
    runs: Mapping[str, Callable[[], float]], rounds: int, *, seed: int = 0, warm_up: int = 1
) -> Times:
    """Call each of `runs` once a round, in shuffled order, after `warm_up` uncounted rounds."""
    chance = random.Random(seed)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(warm_up + rounds):
        for name in chance.sample(list(runs), len(runs)):
            elapsed = runs[name]()
            if number >= warm_up:
                times[name].append(elapsed)
    return times


def in_turns(runs: Mapping[str, Callable[[], object]], rounds: int, repeats: int = 3) -> Times:
    """Time runs of this process whose answers need no check, in turns."""
    with torch.inference_mode():
        timed = {name: partial(seconds, run, repeats) for name, run in runs.items()}
        return interleave(timed, rounds)


def ratios(times: Times, slow: str, fast: str) -> list[float]:
    """Return the time of `slow` divided by the time of `fast`, once per round."""
    return [above / below for above, below in zip(times[slow], times[fast], strict=True)]


def fastest(times: Times, names: Iterable[str]) -> str:
    return min(names, key=lambda name: median(times[name]))
