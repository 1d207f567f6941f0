"""BatchTimeModel: how long batches take, learnt from those that ran; a pure value.

A batch takes a fixed time (launches, the trunk's weights read once), a time for each task in it
(the weights of its branch) and a time per token. The longer a batch, the more of it is work; beyond
some size nothing is gained, and everybody only waits longer: on a processor that size is a few
short texts, on an accelerator it is beyond the token budget.

A machine that others use as well adds delays to batches, never the opposite. They have nothing to
do with tokens, so that they would pass for a fixed part, and batches would grow many times too
long. What a batch takes beyond what is expected of it is therefore counted in small part only.

Batches that are all as long as they may be say nothing about their fixed part, and would keep a
wrong size for ever. What they may be therefore swings around the size that is right.
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Final

FIXED_SHARE: Final = 0.06
"""Of the throughput of the longest batches. Less gains throughput, more shortens every wait."""
MIN_EFFICIENT_TOKENS: Final = 32.0
MEMORY: Final = 0.98
"""What a batch still counts when the next one has run: about 50 batches are remembered."""
MIN_SPREAD: Final = 0.05
"""Variance over squared mean of batch sizes from which a fixed part can be told apart."""
MIN_TASK_SPREAD: Final = 0.02
"""The same of the tasks of batches, without what the batches' sizes explain of it."""
SIZE_VARIATION: Final = 0.3
"""Part of its size by which one batch may be longer, and the next one must be shorter."""
DELAY_SHARE: Final = 0.25
"""Of the time beyond the expected that is counted, so that a machine that stays so is believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearFit:
    """Seconds of a batch: `fixed_s + per_task_s * tasks + per_token_s * tokens`."""

    fixed_s: float
    per_task_s: float = 0.0
    per_token_s: float

    def seconds(self, work: float, num_tasks: float) -> float:
        """Return how long a batch takes."""
        return self.fixed_s + self.per_task_s * num_tasks + self.per_token_s * work


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTimeModel:
    """Recent batches count more: sums of weights, tokens x, tasks t, seconds y; what follows."""

    fixed_share: float = FIXED_SHARE
    max_tokens: float = inf
    max_rows: float = inf
    """Of the longest batch there may be."""
    is_warm: bool = False
    """Whether a batch has run: the first pays for much that no other does, and is not counted."""
    weight: float = 0.0
    x: float = 0.0
    t: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xt: float = 0.0
    tt: float = 0.0
    xy: float = 0.0
    ty: float = 0.0
    num_rows: float = 0.0
    fit: LinearFit | None = None
    """The newest that batches told; None until sizes have differed."""
    tokens_per_s: float | None = None
    """The fastest of recent batches, in tokens that were asked for; None before the first."""
    largest_tokens: float = 0.0
    """The largest of recent batches, in tokens that were asked for."""
    num_batches: int = 0

    def most_tokens(self, num_tasks: int) -> float:
        """How long the longest of the next batches may be while rows for so many tasks wait."""
        return (1 + SIZE_VARIATION) * self.efficient_tokens(num_tasks)

    def next_tokens(self, num_tasks: int) -> float:
        """How long the next batch may be while rows for so many tasks wait."""
        variation = SIZE_VARIATION if self.num_batches % 2 else -SIZE_VARIATION
        return (1 + variation) * self.efficient_tokens(num_tasks)

    def efficient_tokens(self, num_tasks: int) -> float:
        """The size that gives all but `fixed_share` of the throughput of the longest batch.

        Unbounded until known. `num_tasks` is how many have rows waiting. By turns of one row a
        batch has a row of each task before it has two of one; by longer ones it has fewer tasks,
        and gives up less than it may.
        """
        fit = self.fit
        if fit is None:
            return inf
        row = self.x / self.num_rows if self.num_rows else 1.0
        longest = min(self.max_tokens, self.max_rows * row)
        wanted = (1 - self.fixed_share) * _throughput(fit, longest, min(num_tasks, longest / row))
        size = _size(wanted, fit.fixed_s + fit.per_task_s * num_tasks, fit.per_token_s)
        if size < num_tasks * row:
            # Reached before every task has a row: each row brings what its task takes.
            size = _size(wanted, fit.fixed_s, fit.per_token_s + fit.per_task_s / row)
        return min(longest, max(MIN_EFFICIENT_TOKENS, size))

    def after(
        self,
        *,
        work: float,
        asked_work: float,
        seconds: float,
        num_tasks: int,
        num_rows: int,
    ) -> "BatchTimeModel":
        """Return the time_model once a batch has run.

        `work` is what was computed, in tokens through all layers; `asked_work` counts trunk states
        that were held as well.
        """
        if not self.is_warm:
            return replace(self, is_warm=True)
        recent = replace(
            self,
            largest_tokens=max(MEMORY * self.largest_tokens, asked_work),
            tokens_per_s=max(
                MEMORY * (self.tokens_per_s or 0.0), asked_work / seconds if seconds > 0 else 0.0
            ),
        )
        if not work:
            # All of it was held: that tells nothing of tokens, and many such would leave a mean of
            # none at all.
            return recent
        counted_s = _without_delay(self, work=work, num_tasks=num_tasks, seconds=seconds)
        sums = replace(
            recent,
            weight=MEMORY * self.weight + 1,
            x=MEMORY * self.x + work,
            t=MEMORY * self.t + num_tasks,
            y=MEMORY * self.y + counted_s,
            xx=MEMORY * self.xx + work * work,
            xt=MEMORY * self.xt + work * num_tasks,
            tt=MEMORY * self.tt + num_tasks * num_tasks,
            xy=MEMORY * self.xy + work * counted_s,
            ty=MEMORY * self.ty + num_tasks * counted_s,
            num_rows=MEMORY * self.num_rows + num_rows,
        )
        return replace(sums, fit=_fit(sums) or self.fit, num_batches=self.num_batches + 1)


def _throughput(fit: LinearFit, work: float, num_tasks: float) -> float:
    """Return tokens per second of batches of one size, be it endless."""
    return work / fit.seconds(work, num_tasks) if work < inf else 1 / fit.per_token_s


def _size(wanted: float, fixed_s: float, per_token_s: float) -> float:
    """Solve size = wanted * (fixed + slope * size): the size of a wanted throughput."""
    spare = 1 - wanted * per_token_s
    return wanted * fixed_s / spare if spare > 0 else inf


def _without_delay(sums: BatchTimeModel, *, work: float, num_tasks: int, seconds: float) -> float:
    """Return the seconds of a batch, of what is beyond the expected a part; at most twice that."""
    if not sums.weight:
        return seconds
    # Without a fit: what a batch of mean size takes, or as many times more as it is larger.
    expected = sums.y / sums.weight * max(1.0, work * sums.weight / sums.x) if sums.x else inf
    fit = _fit(sums)
    if fit is not None:
        expected = min(expected, fit.seconds(work, num_tasks))
    delay = min(seconds - expected, expected)
    return expected + DELAY_SHARE * delay if delay > 0 else seconds


def _fit(sums: BatchTimeModel) -> LinearFit | None:
    """Fit the seconds of batches by least squares; None if sizes tell too little.

    What a task takes is told by what its number varies beside the size (Frisch and Waugh 1933);
    where it does not, it stays as it was.
    """
    mean, mean_t, mean_s = (value / sums.weight for value in (sums.x, sums.t, sums.y))
    variance = sums.xx / sums.weight - mean * mean
    if variance <= MIN_SPREAD * mean * mean:
        return None
    with_tasks = sums.xt / sums.weight - mean * mean_t
    with_seconds = sums.xy / sums.weight - mean * mean_s
    tasks_alone = sums.tt / sums.weight - mean_t * mean_t - with_tasks**2 / variance
    per_task_s = sums.fit.per_task_s if sums.fit is not None else 0.0
    if tasks_alone > MIN_TASK_SPREAD * mean_t * mean_t:
        seconds_of_tasks = sums.ty / sums.weight - mean_t * mean_s
        found = (seconds_of_tasks - with_tasks * with_seconds / variance) / tasks_alone
        per_task_s = max(0.0, found)
    slope = (with_seconds - per_task_s * with_tasks) / variance
    fixed_s = max(0.0, mean_s - slope * mean - per_task_s * mean_t)
    return (
        LinearFit(fixed_s=fixed_s, per_task_s=per_task_s, per_token_s=slope) if slope > 0 else None
    )
