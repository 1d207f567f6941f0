"""Corpora with tasks to score them, runs that are killed, and the count of lost and double rows."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from doubles.backbones import save_tiny_backbone
from doubles.processes import ended
from doubles.tasks import publish_tiny_task
from nunatak_cli.asking.chunks import Chunk, OnBatch
from nunatak_cli.asking.predict_file import CorpusJob, CorpusOptions, Outcome, run_job
from nunatak_contract.enums import HeadKind, Kernels, ProblemType
from nunatak_contract.methods import QUERY_AND_VALUE, HeadOnly, Lora
from nunatak_model import load_backbone
from nunatak_registry import Registry
from nunatak_server.settings import ServerSettings

TASKS: Final = ("tone", "topics", "stars", "names")
CHUNK_ROWS: Final = 16

KILLED: Final = """
import os
import signal
import sys
from pathlib import Path

from nunatak_cli.asking.predict_file import CorpusJob, run_job
from nunatak_registry import Registry
from nunatak_server.predict import scoring
from nunatak_server.settings import ServerSettings

place, corpus, out = map(Path, sys.argv[1:4])
chunk_rows, rhythm = int(sys.argv[4]), [int(it) for it in sys.argv[5].split(",")]
tasks = tuple(sys.argv[6:])


def run(left):

    def count(event, _):
        nonlocal left
        if event == "os.rename":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    settings = ServerSettings(
        # Only the process of the tests hides the installed operators.
        backbone=str(place / "backbone"), compute_threads=1, kernels="plain"
    )
    job = CorpusJob(corpus=str(corpus), out=out, references=tasks, chunk_rows=chunk_rows)
    with Registry.open(place / "registry", create=False) as registry:
        run_job(job, registry, settings=settings)


for kills in range(100):
    child = os.fork()
    if not child:
        run(rhythm[kills % len(rhythm)])
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        print(kills)
        sys.exit(os.waitstatus_to_exitcode(status))
sys.exit("a hundred runs were not enough")
"""
"""Runs a job until it is complete, and kills each run right before one of its renames of files."""


FORMS: dict[str, dict[str, Any]] = {
    "tone": {},
    "topics": {"method": HeadOnly(), "problem_type": ProblemType.MULTI_LABEL, "seed": 2},
    "stars": {
        "method": Lora(rank=2, alpha=2.0, targets=QUERY_AND_VALUE),
        "labels": ("value",),
        "problem_type": ProblemType.REGRESSION,
        "seed": 3,
    },
    "names": {"kind": HeadKind.TOKEN_CLASSIFICATION, "seed": 4},
    "facts": {"kind": HeadKind.QUESTION_ANSWERING},
    "search": {"kind": HeadKind.RANKING},
}
"""A task for each form of answer."""


def make_place(folder: Path) -> Path:
    """Write a tiny backbone and a registry with a task for each form of answer; return `folder`."""
    backbone = load_backbone(save_tiny_backbone(folder / "backbone"))
    with Registry.open(folder / "registry") as registry:
        for task, options in FORMS.items():
            publish_tiny_task(registry, backbone, task=task, **options)
    return folder


def make_corpus(path: Path, num_rows: int, *, broken: Iterable[int] = ()) -> Path:
    """Write rows with an `id` and texts of many lengths; the texts of `broken` rows are empty."""
    empty = set(broken)
    rows = [
        {"id": number, "text": "" if number in empty else f"parcel {number} " * (1 + number % 5)}
        for number in range(num_rows)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def score(
    place: Path,
    corpus: Path | str,
    out: Path,
    *,
    tasks: Iterable[str] = ("tone",),
    on_chunk: Callable[[Chunk], None] = lambda _: None,
    on_batch: OnBatch = lambda *_: None,
    **options: Any,  # noqa: ANN401 - those of the command
) -> Outcome | None:
    """Score a corpus in small chunks."""
    settings = ServerSettings(
        registry=str(place / "registry"),
        backbone=str((place / "backbone").absolute()),
        compute_threads=1,
        # Only the process of the tests hides the installed operators.
        kernels=Kernels.PLAIN,
    )
    asked = CorpusOptions(**options)
    job = CorpusJob(
        corpus=str(corpus), out=out, references=(*tasks,), options=asked, chunk_rows=CHUNK_ROWS
    )
    with Registry.open(place / "registry", create=False) as registry:
        return run_job(job, registry, settings=settings, on_chunk=on_chunk, on_batch=on_batch)


def run_killed(
    place: Path, corpus: Path, out: Path, *, rhythm: Sequence[int], tasks: Iterable[str] = ("tone",)
) -> int:
    """Score a corpus in runs that are killed, and return the number of kills.

    `rhythm` says, for one run after another and then again, before which rename the run is killed;
    0 is never.
    """
    numbers = (str(CHUNK_ROWS), ",".join(map(str, rhythm)))
    done = ended(KILLED, str(place), str(corpus), str(out), *numbers, *tasks)
    assert done.status == 0, done.stderr
    return int(done.stdout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Misses:
    """The rows of a corpus that OUT and the rejected rows do not have exactly once."""

    lost: int
    twice: int


def misses(out: Path, rejected: Path, num_rows: int) -> Misses:
    """Count the ids of `make_corpus` that are missing, and those that are there more than once."""
    found = Counter(json.loads(line)["id"] for line in out.read_text().splitlines())
    if rejected.exists():
        found.update(json.loads(line)["row"] - 1 for line in rejected.read_text().splitlines())
    return Misses(
        lost=sum(number not in found for number in range(num_rows)),
        twice=sum(count > 1 for count in found.values()),
    )
