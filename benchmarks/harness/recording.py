"""Figures: every measured number that a document quotes, one JSON line each.

A benchmark appends its figures itself; `render_figures` makes tables of them. Identifiers are
stable, so that a later run can be compared with an earlier one.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import cast

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "results" / "figures.jsonl"
VARIABLES = ("PYTHONPATH", "OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA")
"""Environment variables that belong to the command of a figure."""
PACKAGES = ("torch", "transformers", "tokenizers", "peft")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number, with everything needed to measure the number again."""

    id: str
    value: float
    unit: str
    goal: str | None
    """The goal of the value, such as `>= 2.7`; None if the value is only reported."""
    met: bool | None
    low: float
    high: float
    """First and last decile of the runs."""
    runs: int
    command: str
    commit: str
    date: str
    hardware: str
    versions: dict[str, str]
    reason: str | None = None
    """Why a goal was missed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """The file of one benchmark's figures, and the command that makes them."""

    command: str
    file: Path = FIGURES
    rounds: int = 1
    machine: str | None = None
    """Another machine that measured; None: this one."""
    reason: str | None = None
    """Why goals are missed, if some are."""

    def record(
        self,
        identifier: str,
        samples: Sequence[float],
        *,
        unit: str,
        goal: str | None = None,
        reason: str | None = None,
    ) -> Figure:
        """Append and print the median of `samples`, with their first and last decile."""
        if not samples:
            raise ValueError(f"{identifier}: expected a sample, got none; measure for longer")
        value = median(samples)
        low, high = deciles(samples)
        figure = Figure(
            id=identifier,
            value=rounded(value),
            unit=unit,
            goal=goal,
            met=None if goal is None else meets(value, goal),
            low=rounded(low),
            high=rounded(high),
            runs=len(samples),
            command=self.command,
            commit=commit(),
            date=datetime.now(UTC).date().isoformat(),
            hardware=self.machine or hardware(),
            versions=_versions(),
            reason=reason or self.reason,
        )
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(asdict(figure)) + "\n")
        held = "" if goal is None else f", goal {goal}: {'met' if figure.met else 'missed'}"
        spread = f"{figure.low:g} to {figure.high:g}"
        print(f"{identifier}: {figure.value:g} {unit} ({spread}{held})", flush=True)
        return figure

    def record_times(self, prefix: str, times: Mapping[str, Sequence[float]]) -> None:
        """Append the milliseconds of each system of a race, as `prefix.ms.system`."""
        for name, seconds in times.items():
            self.record(f"{prefix}.ms.{name}", [1e3 * one for one in seconds], unit="ms")


def figures_parser(
    description: str | None, *, rounds: int = 0, parts: Iterable[str] = (), data: bool = False
) -> argparse.ArgumentParser:
    """Return a parser of the shared options; a benchmark adds its own before `open_sheet`.

    `rounds` is the default of the option `--rounds`. 0 leaves the option out, for benchmarks that
    do not measure in rounds. `parts` may be named as arguments; all of them are the default. With
    `data`, the folder of data sets has to be named.
    """
    parser, known = argparse.ArgumentParser(description=description), list(parts)
    if rounds:
        parser.add_argument("--rounds", type=positive, default=rounds)
    if known:
        names = "|".join(known)
        # With `choices`, argparse would refuse the default, which is a list.
        parser.add_argument("parts", nargs="*", type=one_of(known), default=known, metavar=names)
    parser.add_argument("--figures", type=Path, default=FIGURES, help="file to append figures to")
    parser.add_argument("--reason", help="why goals are missed, if some are")
    if data:
        parser.add_argument("--data", type=existing, required=True, help="folder of the sets")
    return parser


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {text!r}")
    return int(text)


def existing(text: str) -> Path:
    if not Path(text).exists():
        raise argparse.ArgumentTypeError(f"expected a file or folder that exists, got {text!r}")
    return Path(text)


def one_of(known: Sequence[str]) -> Callable[[str], str]:
    def checked(text: str) -> str:
        if text in known:
            return text
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(known)}, got {text!r}")

    return checked


def open_sheet(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, Sheet]:
    """Read the options; the command in the figures names every option, also the defaults."""
    options = parser.parse_args()
    return options, Sheet(
        command=command_of(vars(options)),
        file=options.figures,
        rounds=getattr(options, "rounds", 1),
        reason=options.reason,
    )


def command_of(options: Mapping[str, object]) -> str:
    """Return the command line of this benchmark with these options; lists are positional."""
    main = sys.modules["__main__"].__spec__
    words = ["python", "-m", main.name if main is not None else "benchmarks"]
    for name, value in options.items():
        if isinstance(value, list):
            words[3:3] = map(str, cast("list[object]", value))
        elif name != "figures" and value is not None and value is not False:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [_plain(value)])]
    variables = [f"{it}={os.environ[it]}" for it in VARIABLES if it in os.environ]
    return " ".join([*variables, shlex.join(words)])


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def deciles(samples: Sequence[float]) -> tuple[float, float]:
    """Return the first and the last decile; a single sample is both."""
    if len(samples) == 1:
        return samples[0], samples[0]
    cuts = quantiles(samples, n=10, method="inclusive")
    return cuts[0], cuts[-1]


def meets(value: float, goal: str) -> bool:
    """Whether a value meets a goal such as `>= 2.7` or `<= 1.05`."""
    match goal.split():
        case [">=", bound]:
            return value >= float(bound)
        case ["<=", bound]:
            return value <= float(bound)
        case _:
            raise ValueError(f"a goal reads '>= NUMBER' or '<= NUMBER', got {goal!r}")


def latest(file: Path = FIGURES) -> dict[str, Figure]:
    if not file.exists():
        return {}
    figures = [Figure(**json.loads(line)) for line in file.read_text().splitlines() if line]
    return {figure.id: figure for figure in figures}


@cache
def _versions() -> dict[str, str]:
    return {name: version(name) for name in PACKAGES}


@cache
def hardware() -> str:
    """Return one line: CPU, cores, memory, native bfloat16 or not, and CUDA devices."""
    cpu = platform.processor() or platform.machine()
    cores, memory = "?", "?"
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        cpu, cores = (names[0] if names else cpu), str(len(names) or "?")
        total = Path("/proc/meminfo").read_text().split()[1]
        memory = f"{round(int(total) / 1024**2)} GiB"
        flags = {flag for line in lines if line.startswith("flags") for flag in line.split()}
        bfloat16 = "native" if flags & {"avx512_bf16", "amx_bf16"} else "no native"
        memory += f", {bfloat16} bfloat16"
    return ", ".join([cpu, f"{cores} cores", memory, *_cuda_devices()])


def _cuda_devices() -> list[str]:
    found = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    lines = [line for path in found for line in path.read_text().splitlines()]
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]


def rounded(value: float) -> float:
    return float(f"{value:.5g}")


@cache
def commit() -> str:
    """Return the short id of the measured commit, marked if the sources have changes.

    A process measures what it loaded at its start, so later commits do not count. Changes of
    documents do not count either, because the file of figures is among the documents.
    """
    found = _git("describe", "--always")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":(top,exclude)docs")
    return f"{found}-dirty" if found and changed else found or "unknown"


def _git(*arguments: str) -> str:
    finished = subprocess.run(  # noqa: S603 - arguments of our own
        ["git", *arguments],  # noqa: S607 - whichever git is on the path
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return finished.stdout.strip()
