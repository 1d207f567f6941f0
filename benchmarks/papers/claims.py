"""The claims of the papers, each with a verdict that follows from a figure or from a person."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, model_validator

from benchmarks.papers.estimate import Estimate
from nunatak_contract.cards import markdown_table

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
