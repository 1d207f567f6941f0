"""A mean over seeds with its interval at 95 %, and what it says about a claim."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev

from scipy import stats

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
