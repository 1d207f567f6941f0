"""Pace: how long batches take, learnt from those that ran; a pure value.

A batch takes a fixed time (launches, weights read once) and a time per token. Batches beyond the
size at which the fixed part is small gain no throughput, and only make everybody wait for longer:
on a processor that size is a few short texts, on an accelerator it is beyond the token budget.

A machine that others use as well adds delays to batches, never the opposite. They have nothing to
do with tokens, so that they would pass for a fixed part, and batches would grow many times too
long. What a batch takes beyond what is expected of it is therefore counted in small part only.

Batches that are all as long as they may be say nothing about their fixed part, and would keep a
wrong size for ever. Now and then one of them is therefore twice as long.
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Final

FIXED_SHARE: Final = 0.08
"""Of the time of a batch of efficient size. Less gains throughput, more shortens every wait."""
MIN_EFFICIENT_TOKENS: Final = 32.0
MEMORY: Final = 0.98
"""What a batch still counts when the next one has run: about 50 batches are remembered."""
MIN_SPREAD: Final = 0.05
"""Variance over squared mean of batch sizes from which a fixed part can be told apart."""
PROBE_EVERY: Final = 8
"""Of so many batches that are all as long as they may be, one is twice as long."""
DELAY_SHARE: Final = 0.25
"""Of the time beyond the expected that is counted, so that a machine that stays so is believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Recent batches count more: sums of weights, tokens x and seconds y; and what follows."""

    fixed_share: float = FIXED_SHARE
    is_warm: bool = False
    """Whether a batch has run: the first pays for much that no other does, and is not counted."""
    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    efficient_tokens: float = inf
    """The size of a batch whose fixed part is `fixed_share` of its time; unbounded until known."""
    tokens_per_s: float | None = None
    """The fastest of recent batches, in tokens that were asked for; None before the first."""
    largest_tokens: float = 0.0
    """The largest of recent batches, in tokens that were asked for."""
    num_alike: int = 0
    """Batches that filled their size since sizes last told a fixed part."""

    @property
    def next_tokens(self) -> float:
        """How long the next batch may be."""
        is_probe = self.num_alike % PROBE_EVERY == PROBE_EVERY - 1
        return 2 * self.efficient_tokens if is_probe else self.efficient_tokens

    def after(self, *, work: float, asked_work: float, seconds: float) -> "Pace":
        """Return the pace once a batch has run.

        `work` is what was computed, in tokens through all layers; `asked_work` counts trunk states
        that were held as well.
        """
        if not self.is_warm:
            return replace(self, is_warm=True)
        counted_s = _without_delay(self, work=work, seconds=seconds)
        sums = replace(
            self,
            weight=MEMORY * self.weight + 1,
            x=MEMORY * self.x + work,
            y=MEMORY * self.y + counted_s,
            xx=MEMORY * self.xx + work * work,
            xy=MEMORY * self.xy + work * counted_s,
            largest_tokens=max(MEMORY * self.largest_tokens, asked_work),
        )
        line = _line(sums)
        is_filled = work >= self.efficient_tokens / 2
        return replace(
            sums,
            efficient_tokens=sums.efficient_tokens if line is None else _size(sums, line),
            num_alike=0 if line is not None else self.num_alike + is_filled,
            tokens_per_s=max(
                MEMORY * (self.tokens_per_s or 0.0), asked_work / seconds if seconds > 0 else 0.0
            ),
        )


def _without_delay(sums: Pace, *, work: float, seconds: float) -> float:
    """Return the seconds of a batch, of what is beyond the expected a part; at most twice that."""
    if not sums.weight:
        return seconds
    # Without a line: what a batch of mean size takes, or as many times more as it is larger.
    expected = sums.y / sums.weight * max(1.0, work * sums.weight / sums.x) if sums.x else inf
    line = _line(sums)
    if line is not None:
        fixed_s, slope = line
        expected = min(expected, fixed_s + slope * work)
    delay = min(seconds - expected, expected)
    return expected + DELAY_SHARE * delay if delay > 0 else seconds


def _size(sums: Pace, line: tuple[float, float]) -> float:
    """Solve fixed = share * (fixed + slope * tokens)."""
    fixed_s, slope = line
    return max(MIN_EFFICIENT_TOKENS, (1 / sums.fixed_share - 1) * fixed_s / slope)


def _line(sums: Pace) -> tuple[float, float] | None:
    """Fit seconds = fixed + slope * tokens by least squares; None if sizes tell too little."""
    mean, mean_s = sums.x / sums.weight, sums.y / sums.weight
    variance = sums.xx / sums.weight - mean * mean
    if variance <= MIN_SPREAD * mean * mean:
        return None
    slope = (sums.xy / sums.weight - mean * mean_s) / variance
    return (max(0.0, mean_s - slope * mean), slope) if slope > 0 else None
