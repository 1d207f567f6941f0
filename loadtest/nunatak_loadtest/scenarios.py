"""Scenarios: the requests of a load test, their rate or users, and the objective."""

from enum import StrEnum
from functools import partial
from typing import Annotated, Self

from pydantic import BaseModel, Field

from nunatak_contract.errors import invalid_settings

Positive = Annotated[float, Field(gt=0)]
PATIENCE_S = 4.0
"""An open loop has users for this many seconds of requests without any answer."""
FEWEST_USERS, MOST_USERS = 16, 2000
"""Limits of the users of an open loop, in all processes together."""


class Asks(StrEnum):
    PREDICT = "predict"
    FAN_OUT = "fan-out"
    VERDICT = "verdict"


class Scenario(BaseModel, frozen=True, extra="forbid"):
    """One load. With a rate the loop is open; otherwise users wait for their answers.

    The gaps of an open loop have a Gamma distribution. Its coefficient of variation is `cv`; 1 is
    Poisson, and more gives bursts (S-LoRA, arXiv 2311.03285, sec. 7). The words of a text are
    log-normal around `words`, at most `longest`.
    """

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
            raise invalid_settings("give either users (who wait for answers) or a rate, not both")
        if seconds is not None and users is None and len(self.steps) > 1 and rate_per_s is None:
            raise invalid_settings(
                f"the steps of scenario {self.name!r} take {self.seconds:g} s together, so "
                "it takes no other duration; leave the duration out, or give users or a rate"
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
        title="One of up to sixteen tasks about each text, short or long, at random times",
        most_tasks=16,
        rate_per_s=40,
        words=20,
        sigma=0.6,
    ),
    _minute(
        name="fanout8",
        title="Eight of up to sixteen tasks about each text, at random times",
        asks=Asks.FAN_OUT,
        width=8,
        most_tasks=16,
        rate_per_s=10,
        # Eight forward passes of a long text take longer than 200 ms on one core by themselves.
        p99_ms=500,
    ),
    _minute(
        name="bursty",
        title="Bursts with pauses between them (Gamma, coefficient of variation 4)",
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
        title="Verdicts of policies (--task) about each text, at random times",
        asks=Asks.VERDICT,
        rate_per_s=10,
    ),
    Scenario(
        name="smoke",
        title="A few seconds at random times: does everything work?",
        rate_per_s=20,
        steps=((8, 5.0),),
        warm_up_s=1,
    ),
)


def scenario_named(name: str) -> Scenario:
    known = {it.name: it for it in SCENARIOS}
    if name in known:
        return known[name]
    raise invalid_settings(
        f"no scenario {name!r}; expected one of {', '.join(known)}. A locustfile of your "
        "own makes others"
    )
