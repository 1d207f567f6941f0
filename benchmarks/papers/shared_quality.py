"""The price of sharing in quality: macro F1 of full fine-tunes, and of tasks on one frozen trunk.

Five sets of the kinds that gateways ask about, on MiniLM. Every way trains the same examples for
the same epochs, and keeps its best epoch. A full fine-tune tries two learning rates. A shared task
tries its own three top layers, and low-rank updates of the upper three layers. The dev examples
alone choose between the tries. The head alone is printed too, and is no choice. Finished runs stay
in the results folder, and are not trained again. Figures are recorded if all five sets are named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean

from pydantic import BaseModel, ConfigDict, JsonValue

from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from nunatak_contract.enums import LinearMap
from nunatak_contract.methods import Full, HeadOnly, Lora, Method, TopK
from nunatak_model import Backbone, load_backbone
from nunatak_training.data import ExampleSet, TaskData, load_task_data
from nunatak_training.fitting import evaluate, fit_task
from nunatak_training.kinds import Metric
from nunatak_training.recipes import default_recipe
from nunatak_training.report import Report

RESULTS = Path(".bench/shared_quality")
PREFIX = "race.five"
SETS: Mapping[str, str] = {
    "banking77": "intent, 77 labels",
    "trec": "topic of a question, 6 labels",
    "tweet_hate": "abuse, 2 labels",
    "sst2": "sentiment, 2 labels",
    "tweet_emotion": "emotion, 4 labels",
}
"""The sets, and what each asks."""
FULL, SHARED, HEAD = "full", "shared", "head"


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One way to train a set."""

    name: str
    group: str
    """Dev examples choose among the tries of a group."""
    method: Method
    changes: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])


TRIES = (
    *(
        Try(name=f"full-{rate:g}", group=FULL, method=Full(), changes={"learning_rate": rate})
        for rate in (1e-4, 3e-4)
    ),
    Try(name="top-3", group=SHARED, method=TopK(num_layers=3)),
    Try(
        name="lora-middle",
        group=SHARED,
        method=Lora(rank=16, alpha=32.0, targets=tuple(LinearMap), first_layer=3),
    ),
    Try(name="head", group=HEAD, method=HeadOnly()),
)
SHARED_TRIES = tuple(one.name for one in TRIES if one.group == SHARED)


class Run(BaseModel):
    """The macro F1 of one trained version."""

    model_config = ConfigDict(frozen=True)

    name: str
    group: str
    dev: float
    test: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Most examples of each part of a set, and the epochs of every run."""

    rows: int
    dev: int
    test: int
    epochs: int


def main() -> None:
    """Train what is missing; then record the figures, if all sets are named."""
    parser = figures_parser(__doc__)
    parser.add_argument("sets", nargs="*", default=list(SETS), help="sets to train")
    parser.add_argument("--data", type=Path, required=True, help="folder with one folder per set")
    parser.add_argument("--rows", type=int, default=1000, help="most train examples of a set")
    parser.add_argument("--dev", type=int, default=300, help="most dev examples of a set")
    parser.add_argument("--test", type=int, default=1500, help="most test examples of a set")
    parser.add_argument("--epochs", type=int, default=4, help="epochs of every run")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds of every run")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of finished runs")
    options, sheet = open_sheet(parser)
    sizes = Sizes(rows=options.rows, dev=options.dev, test=options.test, epochs=options.epochs)
    results = options.results / f"{sizes.rows}-{sizes.dev}-{sizes.test}-{sizes.epochs}"
    results.mkdir(parents=True, exist_ok=True)
    backbone, found = load_backbone(), dict[str, list[list[Run]]]()
    for name in options.sets:
        found[name] = [
            runs_of(options.data / name, sizes, backbone, seed=seed, results=results)
            for seed in range(options.seeds)
        ]
    if set(options.sets) == set(SETS):
        record(found, sheet)


def runs_of(
    folder: Path, sizes: Sizes, backbone: Backbone, *, seed: int, results: Path
) -> list[Run]:
    """Return the runs of a set with a seed, and train those that are missing."""
    runs, data = list[Run](), cut(load_task_data(folder), sizes)
    for one in TRIES:
        file = results / f"{folder.name}-{one.name}-{seed}.json"
        if not file.exists():
            run = train(one, data, backbone, sizes, seed=seed)
            file.write_text(run.model_dump_json(), encoding="utf-8")
            print(f"{folder.name} {seed}: {run.name} {run.dev:.4f} {run.test:.4f}", flush=True)
        runs.append(Run.model_validate_json(file.read_text(encoding="utf-8")))
    return runs


def cut(data: TaskData, sizes: Sizes) -> TaskData:
    """Return the first examples of each part.

    A set without labelled test examples is tested on its dev examples. Its own dev examples are
    then the last train examples.
    """
    train, dev, test = data.train.examples, data.dev.examples, data.test
    if test is None:
        train, dev, test = train[: -sizes.dev], train[-sizes.dev :], data.dev
    return replace(
        data,
        train=ExampleSet(examples=train[: sizes.rows]),
        dev=ExampleSet(examples=dev[: sizes.dev]),
        test=ExampleSet(examples=test.examples[: sizes.test]),
    )


def train(one: Try, data: TaskData, backbone: Backbone, sizes: Sizes, *, seed: int) -> Run:
    if data.test is None:
        raise ValueError(f"{data.name} has no test examples")
    changes: dict[str, JsonValue] = {
        "epochs": sizes.epochs,
        "max_length": 64,
        "metric": Metric.F1_MACRO.value,
        "seed": seed,
        **one.changes,
    }
    recipe = default_recipe(one.method, changes=changes)
    trained = fit_task(data, recipe, backbone, report=Report())
    test = evaluate(trained, data.test, backbone)
    return Run(
        name=one.name,
        group=one.group,
        dev=trained.scores[Metric.F1_MACRO].value,
        test=test.values[Metric.F1_MACRO].value,
    )


def chosen(runs: Sequence[Run], way: str) -> Run:
    """Return the run with the best dev score of a group, or the run of this name."""
    return max((run for run in runs if way in {run.group, run.name}), key=lambda run: run.dev)


def record(found: Mapping[str, list[list[Run]]], sheet: Sheet) -> None:
    """Record the test score of each way on each set, and the mean gap of each seed."""
    for name, seeds in found.items():
        for way in (FULL, SHARED, *SHARED_TRIES, HEAD):
            best = [chosen(runs, way) for runs in seeds]
            tries = ", ".join(sorted({run.name for run in best}))
            unit = f"macro F1 on test examples ({SETS[name]}); {tries}"
            sheet.record(f"{PREFIX}.f1.{name}.{way}", [run.test for run in best], unit=unit)
    gaps = [
        mean(chosen(runs, FULL).test - chosen(runs, SHARED).test for runs in of_seed)
        for of_seed in zip(*found.values(), strict=True)
    ]
    unit = f"macro F1 of full fine-tunes minus shared, mean of {len(found)} sets"
    sheet.record(f"{PREFIX}.f1_gap", gaps, unit=unit, goal="<= 0.01")


if __name__ == "__main__":
    main()
