"""A corpus with five tasks for each text: `predict-file` against five passes of transformers.

The rival is `transformers.pipeline("text-classification")`, once for each task, on the same weights
(low-rank updates merged). It runs in two ways, each with its best batch size of a first look: texts
in the order of the file, and texts sorted by length, which saves padding but which the caller has
to write. The speed-up is over the faster way. Every side reads the texts from a JSONL file and
writes a JSONL file. The time of `predict-file` includes the loading of the tasks, the time of the
rival does not. Throughput does not depend on the number of texts, so a few thousand texts stand for
a longer corpus.

The campaign kills the command at random moments, before and after its first new part, and starts it
again until it is done. The rows of OUT are then counted, and the bytes are compared with a run that
was not killed.
"""

import gzip
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from transformers import pipeline
from transformers.utils import logging

from benchmarks.harness.makers import MAX_LENGTH, TaskPlan, export_full_model, publish_missing
from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from benchmarks.harness.rounds import DisagreementError, fastest, interleave, ratios
from nunatak_cli.corpus.job import CorpusJob, run_job
from nunatak_contract.enums import OnLong
from nunatak_contract.methods import QUERY_AND_VALUE, HeadOnly, Lora, TopK
from nunatak_model import Backbone, load_backbone
from nunatak_registry import Registry
from nunatak_server.settings import ServerSettings

PLANS = tuple(
    TaskPlan(name=name, method=method, seed=seed)
    for seed, (name, method) in enumerate(
        [
            ("top1", TopK(num_layers=1)),
            ("top2", TopK(num_layers=2)),
            ("lora", Lora(rank=8, alpha=16.0, targets=QUERY_AND_VALUE, first_layer=4)),
            ("top1b", TopK(num_layers=1)),
            ("head", HeadOnly()),
        ]
    )
)
TASKS = tuple(plan.name for plan in PLANS)
SOURCES = ("ag_news", "banking77", "tweet_emotion", "sst2")
"""Data sets whose texts are mixed: news, questions to a bank, tweets and sentences of reviews."""
BATCH_SIZES = (1, 8, 32)
TUNED_TEXTS, CHECKED_TEXTS = 64, 64
TOLERANCE = 1e-3
AFTER_A_PART = 0.6
"""Share of the kills that wait for a new part; the others come while a process loads the tasks."""


def main() -> None:
    """Measure and record."""
    parser = figures_parser(__doc__, rounds=5)
    parser.add_argument("--data", type=Path, required=True, help=f"folder with {SOURCES}")
    parser.add_argument("--texts", type=int, default=2000, help="of one round")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--killed-texts", type=int, default=24_000, help="of the campaign")
    parser.add_argument("parts", nargs="*", default=["speed", "kills"], metavar="speed|kills")
    options, sheet = open_sheet(parser)
    backbone = load_backbone()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        publish_missing(folder / "registry", PLANS, backbone)
        if "speed" in options.parts:
            race(sheet, folder, backbone, texts_of(options.data, options.texts))
        if "kills" in options.parts:
            campaign(sheet, folder, texts_of(options.data, options.killed_texts), options.kills)


def texts_of(folder: Path, count: int) -> list[str]:
    """Return different texts of the sources in turns."""
    columns = [_texts(folder / name / "train.jsonl.gz") for name in SOURCES]
    mixed = [text for turn in zip_longest(*columns) for text in turn if text is not None]
    distinct = list(dict.fromkeys(mixed))[:count]
    if len(distinct) < count:
        raise SystemExit(f"the data sets have {len(distinct)} different texts, wanted {count}")
    return distinct


def _texts(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            text = json.loads(line)["text"]
            if text.strip():
                yield text


def write_corpus(path: Path, texts: Sequence[str]) -> Path:
    """Write the texts with their numbers as JSON lines."""
    rows = ({"id": number, "text": text} for number, text in enumerate(texts))
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def race(sheet: Sheet, folder: Path, backbone: Backbone, texts: Sequence[str]) -> None:
    """Record the speed-up over five passes of pipelines."""
    corpus = write_corpus(folder / "corpus.jsonl", texts)
    rival = Rival(folder, backbone, corpus)
    check_agreement(folder, rival, texts[:CHECKED_TEXTS])
    size = {is_sorted: rival.best_size(is_sorted=is_sorted) for is_sorted in (False, True)}
    times = interleave(
        {
            "predict_file": lambda: score(folder, corpus),
            "pipelines": lambda: rival.seconds(size[False], is_sorted=False),
            "pipelines_sorted": lambda: rival.seconds(size[True], is_sorted=True),
        },
        sheet.rounds,
    )
    for name, seconds in times.items():
        rates = [len(texts) / one for one in seconds]
        sheet.record(f"batch.rows_per_s.{name}", rates, unit="texts/s with 5 tasks each")
    best = fastest(times, ("pipelines", "pipelines_sorted"))
    is_sorted = best == "pipelines_sorted"
    chosen = f"{'sorted by length, ' if is_sorted else ''}batch {size[is_sorted]}"
    sheet.record(
        "batch.speedup",
        ratios(times, best, "predict_file"),
        unit=f"times five passes of a pipeline, the faster way: {chosen}",
        goal=">= 4",
    )
    sheet.record(
        "batch.speedup.unsorted",
        ratios(times, "pipelines", "predict_file"),
        unit=f"times five passes of a pipeline in the order of the file, batch {size[False]}",
    )


def score(folder: Path, corpus: Path, out: str = "scored.jsonl") -> float:
    """Score a corpus by `predict-file` in this process; return the seconds, with the loading."""
    target = folder / out
    target.unlink(missing_ok=True)
    job = CorpusJob(corpus=str(corpus), out=target, references=TASKS, on_long=OnLong.CUT)
    with Registry.open(folder / "registry", create=False) as registry:
        started = time.perf_counter()
        run_job(job, registry, settings=ServerSettings())
        return time.perf_counter() - started


class Rival:
    """Five pipelines of transformers, which read and write files like `predict-file`."""

    def __init__(self, folder: Path, backbone: Backbone, corpus: Path) -> None:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self._out = folder / "rival"
        self._corpus = corpus
        self._pipelines = {
            plan.name: pipeline(
                "text-classification",
                model=str(export_full_model(plan, backbone, folder)),
                device="cpu",
            )
            for plan in PLANS
        }

    def best_size(self, *, is_sorted: bool) -> int:
        """Return the batch size with the highest throughput for the first texts."""
        return min(
            BATCH_SIZES, key=lambda it: self.seconds(it, is_sorted=is_sorted, limit=TUNED_TEXTS)
        )

    def seconds(self, size: int, *, is_sorted: bool, limit: int | None = None) -> float:
        """Run the five passes; return the seconds."""
        started = time.perf_counter()
        for task in TASKS:
            lines = self._corpus.read_text().splitlines()[:limit]
            rows = list(map(json.loads, lines))
            answers = self.answers(task, [row["text"] for row in rows], size, is_sorted=is_sorted)
            written = (
                json.dumps({**row, task: it["label"], f"{task}_score": it["score"]})
                for row, it in zip(rows, answers, strict=True)
            )
            self._out.write_text("\n".join(written))
        return time.perf_counter() - started

    def answers(
        self, task: str, texts: Sequence[str], size: int, *, is_sorted: bool
    ) -> list[dict[str, Any]]:
        """Return the answers of one task, in the order of the texts."""
        order = sorted(range(len(texts)), key=lambda it: -len(texts[it])) if is_sorted else None
        asked = list(texts) if order is None else [texts[it] for it in order]
        found = self._pipelines[task](
            asked, batch_size=size, truncation=True, max_length=MAX_LENGTH
        )
        if order is None:
            return found
        places = {place: index for index, place in enumerate(order)}
        return [found[places[place]] for place in range(len(texts))]


def check_agreement(folder: Path, rival: Rival, texts: Sequence[str]) -> None:
    """Raise `DisagreementError` unless both sides give the same labels and scores."""
    corpus = write_corpus(folder / "checked.jsonl", texts)
    score(folder, corpus, "checked-scored.jsonl")
    rows = [json.loads(it) for it in (folder / "checked-scored.jsonl").read_text().splitlines()]
    for task in TASKS:
        for row, theirs in zip(rows, rival.answers(task, texts, 16, is_sorted=True), strict=True):
            difference = abs(row[f"{task}_score"] - theirs["score"])
            if row[task] != theirs["label"] or not difference <= TOLERANCE:
                raise DisagreementError(f"{task} differs for text {row['id']}: {row} {theirs}")


def campaign(sheet: Sheet, folder: Path, texts: Sequence[str], kills: int) -> None:
    """Record the rows that killed runs have lost, and the rows that stand in OUT twice."""
    corpus, chance = write_corpus(folder / "killed.jsonl", texts), random.Random(0)
    whole, out = folder / "whole.jsonl", folder / "out.jsonl"
    first_part_s = _seconds_to_first_part(_start(folder, corpus, whole), whole)
    parts = [0]
    for number in range(1, kills + 1):
        process = _start(folder, corpus, out)
        if chance.random() < AFTER_A_PART:
            _wait_for_parts(process, out, more_than=parts[-1])
        with suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0, first_part_s))
            raise SystemExit(f"the run was complete after {number - 1} kills; --killed-texts more")
        process.send_signal(signal.SIGKILL)
        process.wait()
        parts.append(len(_parts_of(out)))
        print(f"kill {number}: {parts[-1]} parts are done", flush=True)
    _seconds_to_first_part(_start(folder, corpus, out), out)
    found = Counter(json.loads(line)["id"] for line in out.read_text().splitlines())
    useful = sum(before < after for before, after in pairwise(parts))
    unit = f"of {len(texts)} rows, after {kills} kills, {useful} of them after new parts"
    lost = sum(number not in found for number in range(len(texts)))
    sheet.record("batch.lost", [lost], unit=unit, goal="<= 0")
    twice = sum(count > 1 for count in found.values())
    sheet.record("batch.twice", [twice], unit=unit, goal="<= 0")
    if out.read_bytes() != whole.read_bytes():
        raise SystemExit("the killed run has other bytes than the run that was not killed")


def _start(folder: Path, corpus: Path, out: Path) -> "subprocess.Popen[bytes]":
    tasks = [word for name in TASKS for word in ("--task", name)]
    command = ["predict-file", str(corpus), str(out), *tasks, "--on-long", "cut"]
    place = ["--registry", str(folder / "registry")]
    return subprocess.Popen([sys.executable, "-m", "nunatak_cli", *command, *place])  # noqa: S603 - our own command


def _seconds_to_first_part(process: "subprocess.Popen[bytes]", out: Path) -> float:
    """Wait for the end of a command; return its seconds before the first part."""
    started = time.perf_counter()
    _wait_for_parts(process, out, more_than=0)
    begun = time.perf_counter()
    if process.wait() != 0:
        raise SystemExit(f"predict-file ended with {process.returncode}")
    return begun - started


def _wait_for_parts(process: "subprocess.Popen[bytes]", out: Path, *, more_than: int) -> None:
    while len(_parts_of(out)) <= more_than and process.poll() is None:
        time.sleep(0.02)


def _parts_of(out: Path) -> list[Path]:
    """Return the parts that a run has written so far."""
    return list(out.with_name(f"{out.name}.parts").glob("part-*"))


if __name__ == "__main__":
    main()
