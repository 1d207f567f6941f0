"""`BatchTimeModel`: the time that batches take, learnt from earlier batches; a pure value.

A batch takes a fixed time (kernel launches, one read of the weights) and a time for each token.
Longer batches spend a larger part of their time on tokens. Above some size throughput hardly grows,
and only the waits get longer: on a CPU this size is a few short texts, on an accelerator it is
above the token budget. So a batch lasts at most the fixed time over `fixed_share`.

Other programs on the machine delay batches. A delay does not depend on tokens, so it would look
like fixed time, and batches would grow far too long. The model therefore bounds the time that it
counts for one batch. Batches of one size say nothing about the fixed time, so the allowed size
varies around the best one.
"""

from math import inf
from typing import Final, NamedTuple

FIXED_SHARE: Final = 0.08
"""Share of a batch's time that is fixed. A lower share raises throughput, a higher share shortens
every wait."""
MIN_EFFICIENT_TOKENS: Final = 32.0
MEMORY: Final = 0.98
"""Weight of a batch relative to the next one: the model remembers about 50 batches."""
MIN_SPREAD: Final = 0.05
"""Variance over squared mean of batch sizes from which the model can estimate the fixed time."""
SIZE_VARIATION: Final = 0.3
"""Share of the best size by which one batch may be longer, and the next must be shorter."""
MAX_DELAY: Final = 1.25
"""Most time that counts for a batch, over the expected time; lasting changes still count."""


class BatchLimits(NamedTuple):
    """Bounds of one forward pass. Every row must fit an empty batch."""

    max_tokens: int
    max_rows: int
    max_work: float = inf
    """In tokens through all layers of the backbone of the batch. Only a first row, or the siblings
    of a row, may exceed it."""


class LinearFit(NamedTuple):
    """Seconds of a batch: `fixed_s + per_token_s * tokens`."""

    fixed_s: float
    per_token_s: float

    def seconds(self, work: float) -> float:
        return self.fixed_s + self.per_token_s * work


class BatchTimeModel(NamedTuple):
    """Decaying sums over batches (tokens x, seconds y), and the fit that follows."""

    fixed_share: float = FIXED_SHARE
    is_warm: bool = False
    """Whether a batch has run. The model skips the first batch, which includes one-time costs."""
    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    fit: LinearFit | None = None
    """The latest fit; None until batch sizes have differed."""
    tokens_per_s: float | None = None
    """The fastest of recent batches, with cached trunk states counted; None before the first."""
    largest_tokens: float = 0.0
    """The largest of recent batches, with cached trunk states counted."""
    num_batches: int = 0

    @property
    def most_tokens(self) -> float:
        return (1 + SIZE_VARIATION) * self.efficient_tokens

    @property
    def next_tokens(self) -> float:
        variation = SIZE_VARIATION if self.num_batches % 2 else -SIZE_VARIATION
        return (1 + variation) * self.efficient_tokens

    @property
    def efficient_tokens(self) -> float:
        """The size of a batch whose fixed time is `fixed_share` of all; infinite without a fit."""
        fit = self.fit
        if fit is None:
            return inf
        tokens_s = fit.fixed_s * (1 / self.fixed_share - 1)
        return max(MIN_EFFICIENT_TOKENS, tokens_s / fit.per_token_s)

    def after(
        self, *, work: float, asked_tokens: float, seconds: float, token_cost: float = 1.0
    ) -> "BatchTimeModel":
        """Return the model with one more batch.

        `work` is in computed tokens through all layers of the largest backbone; `asked_tokens`
        count as in admission, with cached trunk states. `token_cost` of the batch's backbone is
        relative to the largest one's; the fixed time grows alike, so one fit serves all.
        """
        if not self.is_warm:
            return self._replace(is_warm=True)
        largest_tokens = max(MEMORY * self.largest_tokens, asked_tokens)
        tokens_per_s = asked_tokens / seconds if seconds > 0 else 0.0
        tokens_per_s = max(MEMORY * (self.tokens_per_s or 0.0), tokens_per_s)
        if not work:
            # Everything was cached. Such a batch says nothing about the time of a token, and many
            # of them would bring the mean size to 0.
            return self._replace(largest_tokens=largest_tokens, tokens_per_s=tokens_per_s)
        work, seconds = work / token_cost, seconds / token_cost
        counted_s = min(seconds, MAX_DELAY * _expected_s(self, work))
        sums = self._replace(
            largest_tokens=largest_tokens,
            tokens_per_s=tokens_per_s,
            num_batches=self.num_batches + 1,
            weight=MEMORY * self.weight + 1,
            x=MEMORY * self.x + work,
            y=MEMORY * self.y + counted_s,
            xx=MEMORY * self.xx + work * work,
            xy=MEMORY * self.xy + work * counted_s,
        )
        return sums._replace(fit=_fit(sums) or self.fit)


def _expected_s(sums: BatchTimeModel, work: float) -> float:
    if not sums.weight:
        return inf
    # Without a fit, expect the mean time, scaled up where the batch is above the mean size.
    expected = sums.y / sums.weight * max(1.0, work * sums.weight / sums.x)
    fit = _fit(sums)
    return expected if fit is None else min(expected, fit.seconds(work))


def _fit(sums: BatchTimeModel) -> LinearFit | None:
    mean, mean_s = sums.x / sums.weight, sums.y / sums.weight
    variance = sums.xx / sums.weight - mean * mean
    slope = sums.xy / sums.weight - mean * mean_s
    if variance <= MIN_SPREAD * mean * mean or slope <= 0:
        return None
    per_token_s = slope / variance
    return LinearFit(fixed_s=max(0.0, mean_s - per_token_s * mean), per_token_s=per_token_s)
