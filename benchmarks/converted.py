"""What integers cost in quality: ten sets of all kinds, trained on MiniLM and then converted.

Each task has its top layers of its own. `nunatak task convert` scores the version and its form in
8-bit integers on the same test examples. A figure is the difference in points of 100. A set whose
scores the work folder holds is not trained again; other numbers have a folder of their own.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from benchmarks.harness.recording import figures_parser, open_sheet
from benchmarks.harness.sets import Row, read_part
from benchmarks.ready import nunatak

WORK = Path(".bench/converted")
PREFIX = "forward.int8.quality"
SETS = (
    "sst2",
    "cola",
    "mrpc",
    "banking77",
    "tweet_emotion",
    "stsb",
    "conll2003_en",
    "ud_ewt_pos",
    "policyqa",
    "wikiqa",
    "snips_slots",
)
MULTI_LABEL = "snips_slots"
"""The labels of a text are the kinds of its slots."""
DEV_ROWS = 300
EPOCHS = "4"


def main() -> None:
    parser = figures_parser(__doc__, data=True)
    parser.add_argument("--rows", type=int, default=1500, help="train examples of a set")
    parser.add_argument("--test", type=int, default=1000, help="most test examples")
    parser.add_argument("--layers", type=int, default=3)
    options, sheet = open_sheet(parser)
    found = dict[str, float]()
    work = WORK / f"{options.rows}-{options.test}-{options.layers}"
    for name in SETS:
        folder = work / "data" / name
        write_parts(folder, options.data / name, options.rows, options.test)
        scores = converted(name.replace("_", "-"), folder, options.layers, work)
        found[name] = 100 * (scores["after"] - scores["before"])
        before = f"{scores['metric']} {scores['before']:.4f} before"
        unit = f"points of 100, {before}, {scores['num_examples']} test examples"
        sheet.record(f"{PREFIX}.{name}", [found[name]], unit=unit)
    mean, worst = sum(found.values()) / len(found), min(found, key=found.__getitem__)
    for way, value, goal, unit in (
        ("mean", mean, -0.3, f"points, mean of {len(found)} sets"),
        ("worst", found[worst], -1.0, f"points, {worst}"),
    ):
        sheet.record(f"{PREFIX}.{way}", [value], unit=unit, goal=f">= {goal}")


def write_parts(folder: Path, source: Path, rows: int, test: int) -> None:
    """Write the rows that a set is trained and tested on."""
    folder.mkdir(parents=True, exist_ok=True)
    listed, tested = (
        [labelled(row, source.name) for row in read_part(source, part)]
        for part in ("train", "test")
    )
    parts = {"train": listed[:rows], "dev": listed[rows : rows + DEV_ROWS], "test": tested[:test]}
    for part, kept in parts.items():
        lines = "".join(json.dumps(row) + "\n" for row in kept)
        (folder / f"{part}.jsonl").write_text(lines, encoding="utf-8")


def labelled(row: Row, name: str) -> Row:
    if name != MULTI_LABEL:
        return row
    slots = {it[2:] for it in row["tags"] if it != "O"}
    return {"text": " ".join(row["tokens"]), "labels": sorted(slots)}


def converted(task: str, folder: Path, layers: int, work: Path) -> Mapping[str, float]:
    place = ("--registry", str(work / "registry"), "--quiet", "--json")
    file = work / f"{task}.json"
    if not file.exists():
        words = ("train", "--task", task, "--layers", str(layers), "--epochs", EPOCHS, "--create")
        parts = ("--data", str(folder / "train.jsonl"), "--dev", str(folder / "dev.jsonl"))
        trained = nunatak(*words, *parts, *place)
        asked = ("task", "convert", trained["reference"], "--backbone", "minilm+int8")
        scores = nunatak(*asked, "--data", str(folder / "test.jsonl"), "--tolerance", "100", *place)
        file.write_text(json.dumps(scores), encoding="utf-8")
    return json.loads(file.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
