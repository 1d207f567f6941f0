"""The cascade of typed questions: how many texts a task answers at about its teacher's error.

The registries of a trained task and of its teacher are served in processes of their own. Both are
asked over HTTP, the teacher as the upstream.
"""

import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from benchmarks.harness.sets import Row, read_part
from demo.server_process import ServerProcess
from nunatak_contract.questions import QuestionCard
from nunatak_registry import Registry

QUIET = ("--no-access-log",)
POINTS = 0.005
"""How much more error than the teacher's the cascade may have on the texts of the choice."""
Body = dict[str, Any]


def main() -> None:
    """Measure and record."""
    parser = figures_parser(__doc__)
    parser.add_argument("--own", required=True, help="registry and task, such as FOLDER:trec")
    parser.add_argument("--teacher", required=True, help="registry and task of the teacher")
    parser.add_argument("--data", type=Path, required=True, help="the data set, a folder")
    options, sheet = open_sheet(parser)
    cascade(sheet, options.own, options.teacher, options.data)


def cascade(sheet: Sheet, own: str, teacher: str, data: Path) -> None:
    """Record the share of test texts that the own task answers, at about the teacher's error.

    The confidence below which the teacher is asked is chosen on the dev texts.
    """
    dev, test = (read_part(data, it) for it in ("dev", "test"))
    # Without test examples, one half of the dev texts chooses, and the other half is scored.
    if dev == test:
        dev, test = dev[::2], dev[1::2]
    labels = sorted({it["label"] for it in (*dev, *test)})
    asked = {"type": "choice", "instructions": "What is it?", "criteria": dict.fromkeys(labels)}
    with ExitStack() as running:
        their_url = running.enter_context(serving(teacher, asked))
        their = running.enter_context(httpx.Client(base_url=their_url, timeout=60))
        options = ("--decisions-upstream", f"{their_url}/v1/systemone")
        url = running.enter_context(serving(own, asked, options))
        client = running.enter_context(httpx.Client(base_url=url, timeout=60))
        sides = [[ask(each, it, asked) for it in dev] for each in (client, their)]
        below = threshold_of(dev, *sides)
        with opened(own) as registry:
            task = own.partition(":")[2]
            put(registry, asked, task=task, ask_upstream_below=below)
        time.sleep(1)
        answers = [ask(client, it, asked) for it in test]
        taught = [ask(their, it, asked) for it in test]
    here = [it["x_source"]["kind"] == "task" for it in answers]
    error, their_error = (errors(test, it) / len(test) for it in (answers, taught))
    name = f"decisions.cascade.{task}"
    gap = 100 * (error - their_error)
    unit = f"of {len(test)} test texts, below {below:.3f} the teacher is asked"
    sheet.record(name, [sum(here) / len(here)], unit=unit, goal=">= 0.8")
    unit = f"points of error above the teacher's {100 * their_error:.1f} %"
    sheet.record(f"{name}.error", [gap], unit=unit, goal="<= 0.5")


def threshold_of(rows: Sequence[Row], own: Sequence[Body], their: Sequence[Body]) -> float:
    """Return the least confidence with at most `POINTS` more error than the teacher's."""
    most = errors(rows, their) + POINTS * len(rows)
    for below in sorted({1e-6, *(it["confidence"] + 1e-6 for it in own)}):
        pairs = zip(own, their, strict=True)
        mixed = [mine if mine["confidence"] >= below else other for mine, other in pairs]
        if errors(rows, mixed) <= most:
            return min(1.0, below)
    return 1.0


def errors(rows: Sequence[Row], answers: Sequence[Body]) -> int:
    """Return how many answers are not the label of their row."""
    return sum(it["choice"] != row["label"] for row, it in zip(rows, answers, strict=True))


def ask(client: httpx.Client, row: Row, asked: Body) -> Body:
    """Return the answer to a question about the text of a row."""
    body = {"model": "nunatak", "state": row["text"], "questions": {"it": asked}}
    reply = client.post("/v1/systemone", json=body)
    reply.raise_for_status()
    return reply.json()["answers"]["it"]


def put(registry: Registry, asked: Body, **fields: object) -> None:
    """Publish the card of the question."""
    card = {"name": "question", "question": asked, **fields}
    registry.questions.put(QuestionCard.model_validate(card))


def opened(place: str) -> Registry:
    """Open the registry of a place such as `FOLDER:TASK`."""
    return Registry.open(place.partition(":")[0], create=False)


@contextmanager
def serving(place: str, asked: Body, options: tuple[str, ...] = ()) -> Generator[str]:
    """Run a server in which the task of a place answers the question; give its address."""
    folder, _, task = place.partition(":")
    with opened(place) as registry:
        put(registry, asked, task=task)
    with ServerProcess(folder, options=(*QUIET, *options)) as server:
        yield server.url


if __name__ == "__main__":
    main()
