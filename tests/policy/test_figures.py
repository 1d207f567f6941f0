"""The figures that documents quote are those that benchmarks have recorded."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean

import pytest

from benchmarks.harness.recording import FIGURES, ROOT, latest
from benchmarks.papers.elsa_memory import read_memory
from benchmarks.papers.lines import LINES
from benchmarks.render_figures import write
from nunatak_cli.training.init import ReadyTask

READY = ROOT / "clients" / "cli" / "nunatak_cli" / "training" / "ready"
README = (ROOT / "README.md").read_text(encoding="utf-8")
NEWEST = latest()
GB_OF_MIB = 2**20 / 1e9
ROW = re.compile(
    r"^\| ([^|]+) \| \*\*([\d.]+)[^|]*\*\* \| ([\d.]+)[^|]* \| (.*) \| (\w+) \|$", re.MULTILINE
)
Systems = Mapping[str, tuple[float, str]]
"""The recorded value of each system of a row, and the machine."""


def systems(pattern: str, scale: float = 1.0) -> Systems:
    """The newest values of the figures of a pattern, by the system in the place of `{}`."""
    whole = re.compile(re.escape(pattern).replace(r"\{\}", r"(\w+)"))
    found = {match[1]: NEWEST[name] for name in NEWEST if (match := whole.fullmatch(name))}
    return {name: (it.value * scale, it.hardware) for name, it in found.items()}


def exact(found: Systems) -> Systems:
    return {name: value for name, value in found.items() if not name.endswith("_int8")}


def copies() -> Systems:
    """Gigabytes of eight tasks with three own layers, and of eight full copies of both kinds."""
    memory = read_memory(LINES)
    last = memory.num_tasks
    found = {
        "nunatak": memory.ours[3][last - 1],
        "mapped": memory.mapped[last],
        "private": memory.private[last],
    }
    return {name: (size / 1e9, memory.hardware) for name, size in found.items()}


def quality() -> Systems:
    """The mean over the sets of what dev examples choose, among shared ways and full rates."""
    found = {"nunatak": "shared", "full": "full"}
    hardware = NEWEST["race.five.f1_gap"].hardware
    return {
        name: (mean(it for it, _ in systems(f"race.five.f1.{{}}.{way}").values()), hardware)
        for name, way in found.items()
    }


Better = Callable[..., str]
ROWS: Mapping[str, tuple[Better, Systems]] = {
    "8 tasks with 3 own layers": (min, copies()),
    "8 questions about one text": (min, systems("forward.fanout.t8.k3.len32.ms.{}.int8")),
    "the same in float32": (
        min,
        {
            **systems("forward.fanout.t8.k3.len32.ms.{}.fp32"),
            **systems("forward.fanout.t8.k3.len32.ms.{}.native.fp32"),
        },
    ),
    "5 questions about each": (max, systems("race.five.minilm.{}_int8.c16_per_s")),
    "the same with one client": (max, systems("race.five.minilm.{}_int8.sequential_per_s")),
    "5 questions in float32": (max, exact(systems("race.five.minilm.{}.c16_per_s"))),
    "5 questions, a model": (min, systems("race.five.modernbert.{}_int8.pss_mib", GB_OF_MIB)),
    "quality": (max, quality()),
    "8 of 16 tasks": (max, systems("report.throughput.fanout8.{}_per_s")),
    "memory of 100 tasks": (min, systems("report.memory.bert_base.{}_gb_of_100")),
}
"""Start of each row of the README, which value is the better, and the systems."""
NAMES = {
    "mapped": "mapped from files",
    "onnxruntime": "in onnxruntime",
    "nunatak_full": "our engine with 5 full models",
    "full": "full fine-tunes",
    "peft_mixed": "peft's mixed batches",
    "full_models": "models in transformers",
}
"""What the README calls a rival."""


@pytest.mark.parametrize("task", ReadyTask)
def test_the_card_of_a_ready_task_has_its_recorded_scores(task: ReadyTask) -> None:
    card = (READY / task / "README.md").read_text(encoding="utf-8")
    accuracy, majority = (NEWEST[f"ready.{task}.{it}"].value for it in ("accuracy", "majority"))

    assert f"| accuracy | {accuracy:.2f} |" in card
    assert f"| share of the most frequent label | {majority:.2f} |" in card


def test_every_row_of_the_readme_is_checked() -> None:
    named = [row[0] for row in ROW.findall(README)]

    assert len(named) == README.count("| **") == len(ROWS)
    assert all(name.startswith(start) for name, start in zip(named, ROWS, strict=True))


@pytest.mark.parametrize("start", ROWS)
def test_a_row_of_the_readme_has_our_value_and_that_of_the_strongest_rival(start: str) -> None:
    (row,) = (it for it in ROW.finditer(README) if it[1].startswith(start))
    better, known = ROWS[start]
    rivals = {name: value for name, (value, _) in known.items() if not is_ours(name)}
    strongest = better(rivals, key=rivals.__getitem__)

    for said, name in ((row[2], "nunatak"), (row[3], strongest)):
        value, hardware = known[name]
        assert said == f"{value:.{len(said.partition('.')[2])}f}"
        assert row[5] in hardware
    assert NAMES[strongest] in row[4]


def is_ours(system: str) -> bool:
    """Whether a system is the product itself, and not our engine as a rival with full models."""
    return system.startswith("nunatak") and system != "nunatak_full"


def test_the_committed_pages_are_those_that_the_committed_figures_make(tmp_path: Path) -> None:
    write(NEWEST, tmp_path)

    stale = [
        page.name
        for page in tmp_path.rglob("*.*")
        if page.read_bytes() != (FIGURES.parent / page.relative_to(tmp_path)).read_bytes()
    ]
    assert stale == [], "run `make figures`"
