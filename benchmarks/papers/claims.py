"""The claims of the papers, each with a verdict that follows from a figure or from a person.

A figure is a mean over seeds with its interval at 95 %.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, model_validator
from scipy import stats

from nunatak_contract.cards import markdown_table

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean, with Student's interval if there are two values at least."""

    mean: float
    low: float | None
    high: float | None
    num_values: int
    of: str = ""
    """What the mean is over, besides seeds."""
    num_steps: int | None = None
    """Optimizer steps of the shortest run; None where no claim asks for them."""

    def text(self, shape: str = "{:.3f}") -> str:
        """The mean with its interval, or with the remark that there is one seed."""
        shown = shape.format(self.mean)
        if self.low is None or self.high is None:
            return f"{shown} (one seed)"
        return (
            f"{shown} ({shape.format(self.low)} to {shape.format(self.high)}, "
            f"{self.num_values} seeds)"
        )

    def is_above(self, target: float) -> bool | None:
        """Whether the whole interval is above a target, or below; None if neither.

        Equal counts of a few seeds have no spread, so their interval decides nothing.
        """
        if self.low is None or self.high is None or self.low == self.high:
            return None
        if self.low >= target:
            return True
        return False if self.high < target else None


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of one value a seed, with its interval."""
    middle, count = mean(values), len(values)
    if count < 2:
        return Estimate(mean=middle, low=None, high=None, num_values=count)
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1))
    half = quantile * stdev(values) / sqrt(count)
    return Estimate(mean=middle, low=middle - half, high=middle + half, num_values=count)


CLAIMS = Path(__file__).with_name("claims.yaml")
SHORT = "[short runs](papers-short.md)"


class Verdict(StrEnum):
    """What the runs say about a claim."""

    HOLDS = "holds"
    FAILS = "fails"
    NOT_SHOWN = "not shown"
    NOT_FAIRLY_TESTED = "not fairly tested"
    NOT_RUN = "not run"


class Claim(BaseModel):
    """One table, figure or number of a paper."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    item: str
    figure: str | None = None
    """The figure whose value decides; None: `verdict` is a person's."""
    at_least: float | None = None
    at_most: float | None = None
    reads: str = ""
    """What the figure is."""
    fair_steps: int = 0
    """Steps of the paper's shortest runs; shorter ones decide nothing."""
    is_exact: bool = False
    """Whether the value alone decides, because it is no mean over seeds."""
    verdict: Verdict | None = None
    here: str = ""
    short: bool = False
    """Whether only the short runs show it."""

    @model_validator(mode="after")
    def _has_one_source(self) -> "Claim":
        ends = (self.at_least is None) + (self.at_most is None)
        if (self.figure is None) == (self.verdict is None) or (self.figure and ends != 1):
            raise ValueError(f"{self.item!r} needs a figure with one bound, or a verdict")
        return self

    def judged(self, figures: Mapping[str, Estimate]) -> tuple[Verdict, str]:
        if self.verdict is not None:
            told = f"{self.here} ({SHORT})" if self.short else self.here
            return self.verdict, told
        found = figures.get(self.figure or "")
        if found is None:
            return Verdict.NOT_RUN, self.reads
        text = f"{found.mean:.3f}" if self.is_exact else found.text()
        over = f", {found.of}" if found.of else ""
        return self._of(found), f"{self.reads}{over}: **{text}**"

    def _of(self, found: Estimate) -> Verdict:
        if found.num_steps is not None and found.num_steps < self.fair_steps:
            return Verdict.NOT_FAIRLY_TESTED
        if self.at_least is not None:
            keeps = found.mean >= self.at_least if self.is_exact else found.is_above(self.at_least)
        else:
            bound = self.at_most or 0.0
            above = found.mean > bound if self.is_exact else found.is_above(bound)
            keeps = None if above is None else not above
        if keeps is None:
            return Verdict.NOT_SHOWN
        return Verdict.HOLDS if keeps else Verdict.FAILS


class Paper(BaseModel):
    """One paper with its claims."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    paper: str
    claims: tuple[Claim, ...]

    def markdown(self, figures: Mapping[str, Estimate]) -> str:
        rows = [[it.item, *reversed(it.judged(figures))] for it in self.claims]
        return f"### {self.paper}\n\n" + markdown_table(("claim", "here", "verdict"), rows)


def read_claims() -> tuple[Paper, ...]:
    found = yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))
    return TypeAdapter(tuple[Paper, ...]).validate_python(found)
