"""The traffic of a scenario: tasks of the server, and draws of due times, tasks and texts."""

import math
import random
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import accumulate
from pathlib import Path

from pydantic import JsonValue

from nunatak_client import Client
from nunatak_contract.enums import HeadKind, Reads
from nunatak_contract.errors import invalid_settings
from nunatak_contract.wire import TaskDetail
from nunatak_loadtest.scenarios import Asks, Scenario
from nunatak_rows import file_of_rows, read_rows
from nunatak_rows.inputs import bad_row

# The usual English vocabularies hold each of these words as one token.
WORDS = tuple(files("nunatak_loadtest").joinpath("words.txt").read_text("utf-8").split())


class Requests:
    """An endless draw of requests: tasks by popularity, texts by length or from a file.

    A server remembers texts. Drawn texts are of random words, so that hardly one comes twice.
    """

    def __init__(
        self, scenario: Scenario, tasks: Sequence[str], *, seed: int, texts: Sequence[str] = ()
    ) -> None:
        self._random = random.Random(seed)  # noqa: S311 - not a secret
        self._scenario = scenario
        self._tasks = tuple(tasks)
        self._cumulative = tuple(accumulate(task_weights(scenario.zipf, len(tasks))))
        self._texts = tuple(texts)

    def draw(self) -> tuple[tuple[str, ...], str]:
        return self._draw_tasks(), self.draw_text()

    def draw_text(self) -> str:
        if self._texts:
            return self._random.choice(self._texts)
        drawn = self._random.lognormvariate(math.log(self._scenario.words), self._scenario.sigma)
        count = min(max(round(drawn), 1), self._scenario.longest)
        return " ".join(self._random.choices(WORDS, k=count))

    def _draw_tasks(self) -> tuple[str, ...]:
        wanted = self._scenario.width
        if wanted >= len(self._tasks):
            return self._tasks
        chosen = dict[str, None]()
        while len(chosen) < wanted:
            (task,) = self._random.choices(self._tasks, cum_weights=self._cumulative)
            chosen[task] = None
        return tuple(chosen)


def gaps(rate_per_s: float, cv: float, *, seed: int) -> Iterator[float]:
    """The seconds between the due times of an open loop, without end."""
    chance, shape = random.Random(seed), 1 / cv**2  # noqa: S311 - not a secret
    while True:
        yield chance.gammavariate(shape, 1 / (shape * rate_per_s))


def task_weights(zipf: float, num_tasks: int) -> tuple[float, ...]:
    """The share of requests of each task, the largest first; the shares add up to one."""
    raw = [rank**-zipf for rank in range(1, num_tasks + 1)]
    total = math.fsum(raw)
    return tuple(weight / total for weight in raw)


def read_texts(path: Path) -> tuple[str, ...]:
    texts = list[str]()
    for row in read_rows(file_of_rows(path, name=str(path))):
        if row.problem is not None or not isinstance(text := row.values.get("text"), str):
            raise bad_row(row.where, row.problem or "expected a text in the column 'text'")
        texts.append(text.strip())
    if not texts:
        raise invalid_settings(f"{path} holds no text")
    return tuple(texts)


def tasks_of(
    client: Client, scenario: Scenario, given: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tasks to ask (or policies for verdicts), and those that the test cannot ask."""
    if scenario.asks is Asks.VERDICT:
        chosen, left_out = list(given), list[str]()
    elif given:
        chosen, left_out = _checked(client, given), []
    else:
        info, known = client.info(), client.tasks()
        served = [it.get("digest") for it in (info.backbone, *info.other_backbones)]
        chosen, left_out = [], [it.name for it in known if needed(it.head, it.reads) is not None]
        for name in sorted({it.name for it in known}.difference(left_out)):
            # A registry may have thousands of tasks, and each look is a request.
            if len(chosen) == scenario.most_tasks:
                break
            is_served = _backbone_of(client.task(name)) in served
            (chosen if is_served else left_out).append(name)
        left_out.sort()
    if not chosen or len(set(chosen)) != len(chosen):
        wanted = "policy" if scenario.asks is Asks.VERDICT else "task"
        raise invalid_settings(
            f"scenario {scenario.name!r} needs at least one {wanted}, and each once, got "
            f"{', '.join(chosen) or 'none'}; name it by --task (`nunatak {wanted} list`)"
        )
    return tuple(chosen[: scenario.most_tasks]), tuple(left_out)


def _backbone_of(task: TaskDetail) -> JsonValue:
    backbone = task.manifest["backbone"]
    return backbone["digest"] if isinstance(backbone, dict) else None


def _checked(client: Client, given: Sequence[str]) -> list[str]:
    for name in given:
        task = client.task(name)
        other = needed(task.head, task.reads)
        if other is not None:
            raise invalid_settings(
                f"task {name!r} reads {other}, but a load test sends single texts; leave "
                "the task out"
            )
    return list(given)


def needed(head: str, reads: Reads | None) -> str | None:
    """Return what a task reads in place of a single text; None if a single text is enough."""
    match head, reads:
        case HeadKind.QUESTION_ANSWERING, _:
            return "a question with its context"
        case HeadKind.RANKING, _:
            return "a query with its documents"
        case _, Reads.PAIR:
            return "two texts"
        case _:
            return None
