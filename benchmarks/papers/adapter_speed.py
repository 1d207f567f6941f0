"""Training of LoRA and bottlenecks in all layers of MiniLM, here and with transformers' Trainer.

The examples are real. No layer lies below the adapters, so no run has trunk states. Trainer uses
`peft` for LoRA and `adapters` for bottlenecks, pads each batch to its longest text, and trains
twice: with random batches, and with batches of near lengths (`group_by_length`), which need less
padding. The faster of the two counts. Optimizer, rates, schedule, batch size, epochs, dropout,
evaluation after each epoch, number format and number of threads are the same.

Our seconds include tokenization, and the seconds of Trainer do not. Each round has another seed.

Both dev accuracies are recorded. If they differ by more than chance allows, no speed is recorded.
"""

import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import torch
from pydantic import JsonValue

from benchmarks.forward.worker import Peer
from benchmarks.harness.environments import interpreter
from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from benchmarks.harness.rounds import fastest, interleave, ratios
from benchmarks.harness.workload import minilm_folder
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, Full, Lora
from nunatak_model import Backbone, load_backbone
from nunatak_training.data import ExampleSet, TaskData, load_task_data
from nunatak_training.fitting import fit_task
from nunatak_training.kinds import Metric
from nunatak_training.loop.step import plan_course
from nunatak_training.recipes import Recipe, default_recipe
from nunatak_training.report import SilentReport

WORKER = Path(__file__).with_name("trainer_worker.py")
MAX_LENGTH, EPOCHS = 128, 2
OURS, RANDOM, GROUPED = "nunatak", "trainer", "trainer_grouped"
GOAL = ">= 1.3"
TRAINER_NEEDS = f"accelerate=={version('accelerate')}"
"""A package without which Trainer does not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """One method, and the library with which Trainer trains it."""

    library: str
    method: Lora | Bottleneck | Full
    changes: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """Further changes of the recipe."""

    @property
    def settings(self) -> Mapping[str, float]:
        """The settings of the method, as the worker names them."""
        match self.method:
            case Lora():
                return {"rank": self.method.rank, "alpha": self.method.alpha}
            case Bottleneck():
                return {"size": self.method.size}
            case Full():
                return {}

    def python(self) -> Path:
        """Return the interpreter that has the library."""
        if self.library != Peer.ADAPTERS:
            return Path(sys.executable)
        packages = [
            f"torch=={version('torch').partition('+')[0]}",
            *Peer.ADAPTERS.packages,
            TRAINER_NEEDS,
        ]
        return interpreter("adapters_trainer", packages)


RACES = (
    Race(library="peft", method=Lora(rank=8, alpha=16.0, targets=QUERY_AND_VALUE)),
    Race(library="adapters", method=Bottleneck(size=64)),
)


def main() -> None:
    """Race both methods on one data set, and record speed-ups and scores."""
    parser = figures_parser(__doc__, rounds=3)
    parser.add_argument("set", nargs="?", default="mrpc", help="name of a folder in DATA")
    parser.add_argument("--data", type=Path, required=True, help="folder with one folder per set")
    parser.add_argument("--rows", type=int, default=960, help="number of train examples")
    options, sheet = open_sheet(parser)
    data = first_rows(load_task_data(options.data / options.set), options.rows)
    backbone = load_backbone()
    for race in RACES:
        compare(race, data, backbone, sheet)


def compare(race: Race, data: TaskData, backbone: Backbone, sheet: Sheet) -> None:
    """Train in turns, check that the scores are equal up to chance, and record the figures."""
    scores: dict[str, list[float]] = {}
    python = race.python()

    def clock(who: str, run: Callable[[int], tuple[float, float]]) -> Callable[[], float]:
        def seconds() -> float:
            elapsed, score = run(len(scores.setdefault(who, [])))
            scores[who].append(score)
            print(f"{race.method.kind} {who}: {elapsed:.1f} s, {score:.4f}", flush=True)
            return elapsed

        return seconds

    times = interleave(
        {
            OURS: clock(OURS, lambda seed: train_ours(race, data, backbone, seed=seed)),
            RANDOM: clock(
                RANDOM, lambda seed: train_theirs(race, data, python, seed=seed, grouped=False)
            ),
            GROUPED: clock(
                GROUPED, lambda seed: train_theirs(race, data, python, seed=seed, grouped=True)
            ),
        },
        sheet.rounds,
        warm_up=0,
    )
    rival = fastest(times, (RANDOM, GROUPED))
    for who in (OURS, rival):
        check_scores(scores[OURS], scores[who], num_examples=len(data.dev.examples))
    prefix = f"training.{race.method.kind}"
    unit = f"times faster than Trainer with {race.library}"
    sheet.record(f"{prefix}.fp32", ratios(times, rival, OURS), unit=unit, goal=GOAL)
    for who in (RANDOM, GROUPED):
        name = f"{prefix}.fp32.vs_{who}"
        sheet.record(name, ratios(times, who, OURS), unit=f"{unit}, {who}")
    for who in (OURS, rival):
        system = OURS if who == OURS else race.library
        sheet.record(f"{prefix}.score.{system}", scores[who], unit="dev accuracy")


def check_scores(ours: list[float], theirs: list[float], *, num_examples: int) -> None:
    """Stop unless the mean accuracies differ by at most two standard errors of one difference."""
    share = mean(theirs)
    tolerance = 2 * math.sqrt(2 * share * (1 - share) / num_examples)
    difference = mean(ours) - share
    if abs(difference) > tolerance:
        raise SystemExit(
            f"the dev accuracies differ by {difference:.3f}, at most {tolerance:.3f} is expected"
        )


def first_rows(data: TaskData, num_rows: int) -> TaskData:
    """Return the data with a random part of the train examples."""
    examples = list(data.train.examples)
    random.Random(0).shuffle(examples)
    return replace(data, train=ExampleSet(examples=tuple(examples[:num_rows])), test=None)


def recipe_of(race: Race, *, seed: int) -> Recipe:
    """Return the default recipe of the method, with the head of transformers' own class."""
    changes: dict[str, JsonValue] = {
        "epochs": EPOCHS,
        "max_length": MAX_LENGTH,
        "pooling": "first",
        "dense": True,
        "seed": seed,
        **race.changes,
    }
    return default_recipe(race.method, changes=changes)


def train_ours(race: Race, data: TaskData, backbone: Backbone, *, seed: int) -> tuple[float, float]:
    """Train once; return the seconds and the dev accuracy of the best epoch."""
    started = time.perf_counter()
    recipe = recipe_of(race, seed=seed)
    trained = fit_task(data, recipe, backbone, report=SilentReport())
    return time.perf_counter() - started, trained.scores[Metric.ACCURACY]


def train_theirs(
    race: Race, data: TaskData, python: Path, *, seed: int, grouped: bool
) -> tuple[float, float]:
    """Train once with Trainer; return the seconds and the dev accuracy of the best epoch."""
    recipe = recipe_of(race, seed=seed)
    job: dict[str, Any] = {
        "library": race.library,
        "backbone": str(minilm_folder()),
        "num_threads": torch.get_num_threads(),
        "num_labels": len(data.labels),
        "grouped": grouped,
        "warmup_steps": plan_course(recipe, len(data.train.examples)).warmup_steps,
        "train": _rows(data.train, data.labels),
        "dev": _rows(data.dev, data.labels),
        **race.settings,
        **{name: getattr(recipe, name) for name in SHARED},
    }
    with TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(job))
        finished = subprocess.run(  # noqa: S603 - our own script
            [str(python), str(WORKER), str(file)], stdout=subprocess.PIPE, text=True, check=True
        )
    ran = json.loads(finished.stdout.splitlines()[-1])
    return float(ran["seconds"]), max(ran["scores"])


SHARED = (
    "epochs", "batch_size", "max_length", "learning_rate", "head_learning_rate", "weight_decay",
    "seed",
)  # fmt: skip
"""The settings that both recipes have."""


def _rows(examples: ExampleSet, labels: tuple[str, ...]) -> list[list[object]]:
    return [[it.text, it.text_pair, labels.index(str(it.label))] for it in examples.examples]


if __name__ == "__main__":
    main()
