"""The price of sharing in quality: macro F1 of full fine-tunes, and of tasks on one frozen trunk.

Five sets of the kinds that gateways ask about, on MiniLM. Every way trains the same examples for
the same epochs, and keeps its best epoch. A full fine-tune tries two learning rates. A shared task
tries its own three top layers, and low-rank updates of the upper three layers. The dev examples
alone choose between the tries. The head alone is printed too, and is no choice. Finished runs stay
in the results folder, and are not trained again. Figures are recorded if all five sets are named.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

from pydantic import BaseModel, ConfigDict

from benchmarks.harness.recording import Sheet, figures_parser, open_sheet, positive
from benchmarks.papers.adopt import Named, read, run
from nunatak_contract.enums import LinearMap
from nunatak_model import load_backbone
from nunatak_registry import Registry

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


TRIES: Mapping[str, tuple[str, Named]] = {
    **{
        f"full-{rate:g}": (FULL, {"method": "full", "learning_rate": rate}) for rate in (1e-4, 3e-4)
    },
    "top-3": (SHARED, {"method": "topk", "layers": 3}),
    "lora-middle": (
        SHARED,
        {"method": "lora", "rank": 16, "alpha": 32.0, "targets": [*LinearMap], "first_layer": 3},
    ),
    "head": (HEAD, {"method": "head"}),
}
"""Group and settings of each try; dev examples choose among the tries of a group."""
SHARED_TRIES = tuple(name for name, (group, _) in TRIES.items() if group == SHARED)


class Run(BaseModel):
    """The macro F1 of one trained version."""

    model_config = ConfigDict(frozen=True)

    name: str
    group: str
    dev: float
    test: float


def main() -> None:
    """Train what is missing; then record the figures, if all sets are named."""
    parser = figures_parser(__doc__, parts=SETS, data=True)
    parser.add_argument("--rows", type=int, default=1000, help="most train examples of a set")
    parser.add_argument("--dev", type=int, default=300, help="most dev examples of a set")
    parser.add_argument("--test", type=int, default=1500, help="most test examples of a set")
    parser.add_argument("--epochs", type=int, default=4, help="epochs of every run")
    parser.add_argument("--seeds", type=positive, default=1, help="number of seeds of every run")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of finished runs")
    options, sheet = open_sheet(parser)
    sizes = (options.rows, options.dev, options.test, options.epochs)
    results = options.results / "-".join(map(str, sizes))
    results.mkdir(parents=True, exist_ok=True)
    found = {
        name: [
            runs_of(options.data / name, sizes, seed=seed, results=results)
            for seed in range(options.seeds)
        ]
        for name in options.parts
    }
    if set(options.parts) == set(SETS):
        record(found, sheet)


def runs_of(
    folder: Path, sizes: tuple[int, int, int, int], *, seed: int, results: Path
) -> list[Run]:
    """Return the runs of a set with a seed, and train those that are missing.

    A set without labelled test examples is tested on its dev examples. Its own dev examples are
    then the last train examples.
    """
    rows, num_dev, num_test, epochs = sizes
    train, test, runs = read(folder, "train"), read(folder, "test"), list[Run]()
    if (folder / "test.jsonl.gz").exists():
        dev = read(folder, "dev")[:num_dev]
    else:
        train, dev = train[:-num_dev], train[-num_dev:]
    parts = {"train": train[:rows], "dev": dev, "test": test[:num_test]}
    for name, (group, named) in TRIES.items():
        file = results / f"{folder.name}-{name}-{seed}.json"
        if not file.exists():
            settings = {"epochs": epochs, "seed": seed, **named}
            with TemporaryDirectory() as place, Registry.open(place) as registry:
                made = run("shared", parts, settings, registry, load_backbone()).manifest
            scores = {"dev": made.metrics[0].value, "test": made.test_metrics[0].value}
            file.write_text(Run(name=name, group=group, **scores).model_dump_json(), "utf-8")
            print(f"{folder.name} {seed}: {name} {scores}", flush=True)
        runs.append(Run.model_validate_json(file.read_text("utf-8")))
    return runs


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
