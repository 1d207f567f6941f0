"""Scenarios: the requests of a load test, their rate or users, the objective, and what is drawn."""

import math
import random
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import partial
from importlib.resources import files
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

from nunatak_client import Client
from nunatak_contract.enums import HeadKind, Reads
from nunatak_contract.errors import NunatakError
from nunatak_rows import file_of_rows, read_rows
from nunatak_rows.inputs import bad_row

Positive = Annotated[float, Field(gt=0)]
PATIENCE_S = 4.0
"""An open loop has users for this many seconds of requests without any answer."""
FEWEST_USERS, MOST_USERS = 16, 2000
"""Limits of the users of an open loop, in all processes together."""


class Asks(StrEnum):
    PREDICT = "predict"
    FAN_OUT = "fan-out"
    VERDICT = "verdict"


class Scenario(BaseModel):
    """One load. With a rate the loop is open; otherwise users wait for their answers.

    The gaps of an open loop have a Gamma distribution. Its coefficient of variation is `cv`; 1 is
    Poisson, and more gives bursts (S-LoRA, arXiv 2311.03285, sec. 7). The words of a text are
    log-normal around `words`, at most `longest`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str = ""
    asks: Asks = Asks.PREDICT
    width: Annotated[int, Field(ge=1)] = 1
    """Tasks of a request of a fan-out, or all tasks if there are fewer."""
    most_tasks: Annotated[int, Field(ge=1)] | None = None
    zipf: Annotated[float, Field(ge=0, le=5)] = 0.0
    """The task of rank r gets requests in proportion to `r ** -zipf`; 0: all alike."""
    rate_per_s: Positive | None = None
    cv: Positive = 1.0
    steps: tuple[tuple[int, float], ...] = ((8, 30.0),)
    """Users and seconds of each step; an open loop uses the seconds alone."""
    warm_up_s: Annotated[float, Field(ge=0)] = 0.0
    words: Positive = 32.0
    sigma: Annotated[float, Field(ge=0)] = 0.25
    longest: Annotated[int, Field(ge=1)] = 128
    p99_ms: Positive = 200.0
    """Objective: 99 of 100 requests are answered within this time."""

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.steps)

    def users_at(self, second: float) -> int | None:
        """Users at a time of the run, the warm-up included; None after the end."""
        if self.rate_per_s is not None:
            is_over = second >= self.warm_up_s + self.seconds
            wanted = round(self.rate_per_s * PATIENCE_S)
            return None if is_over else min(max(wanted, FEWEST_USERS), MOST_USERS)
        end = self.warm_up_s
        for users, seconds in self.steps:
            end += seconds
            if second < end:
                return users
        return None

    def changed(
        self,
        *,
        users: int | None = None,
        rate_per_s: float | None = None,
        seconds: float | None = None,
    ) -> Self:
        """The scenario with other users, another rate or duration; bursts stay bursts."""
        if users is not None and rate_per_s is not None:
            raise NunatakError(
                "invalid_settings",
                problem="give either users (who wait for answers) or a rate, not both",
            )
        if seconds is not None and users is None and len(self.steps) > 1 and rate_per_s is None:
            raise NunatakError(
                "invalid_settings",
                problem=f"the steps of scenario {self.name!r} take {self.seconds:g} s together, so "
                "it takes no other duration; leave the duration out, or give users or a rate",
            )
        changes = dict[str, object]()
        if users is not None:
            changes |= {"rate_per_s": None, "steps": ((users, self.seconds),)}
        if rate_per_s is not None:
            changes |= {"rate_per_s": rate_per_s, "steps": ((0, self.seconds),)}
        if seconds is not None:
            changes |= {
                "steps": ((users or max(it for it, _ in self.steps), seconds),),
                "warm_up_s": min(self.warm_up_s, seconds),
            }
        return self.model_copy(update=changes)


_minute = partial(Scenario, steps=((8, 60.0),), warm_up_s=5)
SCENARIOS = (
    Scenario(name="users", title="Eight users, each waiting for its answer, ask all tasks alike"),
    Scenario(
        name="steps",
        title="Users come in steps: 1, 4, 16, 64",
        steps=((1, 15), (4, 15), (16, 15), (64, 15)),
    ),
    _minute(
        name="single",
        title="Up to sixteen tasks, one per text of ragged length, independent arrivals",
        most_tasks=16,
        rate_per_s=40,
        words=20,
        sigma=0.6,
    ),
    _minute(
        name="fanout8",
        title="Eight of up to sixteen tasks about every text, independent arrivals",
        asks=Asks.FAN_OUT,
        width=8,
        most_tasks=16,
        rate_per_s=10,
        # Eight forward passes of a long text take longer than 200 ms on one core by themselves.
        p99_ms=500,
    ),
    _minute(
        name="bursty",
        title="Bursts: Gamma arrivals with a coefficient of variation of 4",
        rate_per_s=30,
        cv=4,
    ),
    _minute(
        name="long",
        title="Long texts of about a hundred words",
        rate_per_s=15,
        words=100,
        sigma=0.2,
    ),
    _minute(name="zipf", title="A few tasks get most requests (Zipf 1.0)", zipf=1, rate_per_s=40),
    _minute(
        name="verdicts",
        title="Verdicts of a policy about every text, independent arrivals",
        asks=Asks.VERDICT,
        rate_per_s=10,
    ),
    Scenario(
        name="smoke",
        title="A few seconds of independent arrivals: does everything work?",
        rate_per_s=20,
        steps=((8, 5.0),),
        warm_up_s=1,
    ),
)


def scenario_named(name: str) -> Scenario:
    known = {it.name: it for it in SCENARIOS}
    if name in known:
        return known[name]
    raise NunatakError(
        "invalid_settings",
        problem=f"no scenario {name!r}; expected one of {', '.join(known)}. A locustfile of your "
        "own makes others",
    )


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
        raise NunatakError("invalid_settings", problem=f"{path} holds no text")
    return tuple(texts)


def tasks_of(
    client: Client, scenario: Scenario, given: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tasks to ask (or policies for verdicts), and those that read no single text."""
    if scenario.asks is Asks.VERDICT:
        chosen, left_out = list(given), list[str]()
    elif given:
        chosen, left_out = _checked(client, given), []
    else:
        needs = {it.name: needed(it.head, it.reads) for it in client.tasks()}
        chosen = sorted(name for name, other in needs.items() if other is None)
        left_out = sorted(name for name, other in needs.items() if other is not None)
    if not chosen or len(set(chosen)) != len(chosen):
        wanted = "policies that are given" if scenario.asks is Asks.VERDICT else "tasks"
        raise NunatakError(
            "invalid_settings",
            problem=f"scenario {scenario.name!r} asks {wanted}, at least one and each once, but "
            f"there are: {', '.join(chosen) or 'none'}",
        )
    return tuple(chosen[: scenario.most_tasks]), tuple(left_out)


def _checked(client: Client, given: Sequence[str]) -> list[str]:
    for name in given:
        task = client.task(name)
        other = needed(task.head, task.reads)
        if other is not None:
            raise NunatakError(
                "invalid_settings",
                problem=f"task {name!r} reads {other}, but a load test sends single texts; leave "
                "the task out",
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
