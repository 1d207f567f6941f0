"""`BatchTimeModel`: the time that batches take, learnt from earlier batches; a pure value.

A batch takes a fixed time (kernel launches, one read of the trunk's weights), a time for each task
(the weights of its branch) and a time for each token. Longer batches spend a larger part of their
time on tokens. Above some size throughput hardly grows, and only the waits get longer: on a CPU
this size is a few short texts, on an accelerator it is above the token budget.

Other programs on the machine delay batches. A delay does not depend on tokens, so it would look
like fixed time, and batches would grow far too long. The model therefore counts only a part of the
time above its expectation. Batches of one size say nothing about the fixed time, so the allowed
size varies around the best one.
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Final

FIXED_SHARE: Final = 0.06
"""Share of the peak throughput to give up. A lower share raises throughput, a higher share shortens
every wait."""
MIN_EFFICIENT_TOKENS: Final = 32.0
MEMORY: Final = 0.98
"""Weight of a batch relative to the next one: the model remembers about 50 batches."""
MIN_SPREAD: Final = 0.05
"""Variance over squared mean of batch sizes from which the model can estimate the fixed time."""
MIN_TASK_SPREAD: Final = 0.02
"""The same for the number of tasks, without the part that batch sizes explain."""
SIZE_VARIATION: Final = 0.3
"""Share of the best size by which one batch may be longer, and the next must be shorter."""
DELAY_SHARE: Final = 0.25
"""Share of the time above the expectation that the model counts; lasting changes still count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearFit:
    """Seconds of a batch: `fixed_s + per_task_s * tasks + per_token_s * tokens`."""

    fixed_s: float
    per_task_s: float = 0.0
    per_token_s: float

    def seconds(self, work: float, num_tasks: float) -> float:
        """Return the time of a batch of `work` tokens for so many tasks."""
        return self.fixed_s + self.per_task_s * num_tasks + self.per_token_s * work


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTimeModel:
    """Decaying sums over batches (tokens x, tasks t, seconds y), and the fit that follows."""

    fixed_share: float = FIXED_SHARE
    max_tokens: float = inf
    max_rows: float = inf
    """Bounds of the longest batch."""
    is_warm: bool = False
    """Whether a batch has run. The model skips the first batch, which includes one-time costs."""
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
    """The latest fit; None until batch sizes have differed."""
    tokens_per_s: float | None = None
    """The fastest of recent batches, with cached trunk states counted; None before the first."""
    largest_tokens: float = 0.0
    """The largest of recent batches, with cached trunk states counted."""
    num_batches: int = 0

    def most_tokens(self, num_tasks: int) -> float:
        """Return the largest size that a next batch may have while so many tasks wait."""
        return (1 + SIZE_VARIATION) * self.efficient_tokens(num_tasks)

    def next_tokens(self, num_tasks: int) -> float:
        """Return the size that the next batch may have while so many tasks wait."""
        variation = SIZE_VARIATION if self.num_batches % 2 else -SIZE_VARIATION
        return (1 + variation) * self.efficient_tokens(num_tasks)

    def efficient_tokens(self, num_tasks: int) -> float:
        """Return the size that gives all but `fixed_share` of the throughput of the longest batch.

        The size is infinite until a fit is known. `num_tasks` tasks have waiting rows. With turns
        of one row, a batch has a row of each task before a second row of any. With long turns a
        batch has fewer tasks, and gives up less throughput than `fixed_share`.
        """
        fit = self.fit
        if fit is None:
            return inf
        row = self.x / self.num_rows if self.num_rows else 1.0
        longest = min(self.max_tokens, self.max_rows * row)
        wanted = (1 - self.fixed_share) * _throughput(fit, longest, min(num_tasks, longest / row))
        size = _size(wanted, fit.fixed_s + fit.per_task_s * num_tasks, fit.per_token_s)
        if size < num_tasks * row:
            # The batch has this size before every task has a row: each row adds a task.
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
        """Return the model with one more batch.

        `work` is the computed work, in tokens through all layers. `asked_work` includes cached
        trunk states.
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
            # Everything was cached. Such a batch says nothing about the time of a token, and many
            # of them would bring the mean size to 0.
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
    """Return tokens per second of batches of one size, which may be infinite."""
    return work / fit.seconds(work, num_tasks) if work < inf else 1 / fit.per_token_s


def _size(wanted: float, fixed_s: float, per_token_s: float) -> float:
    """Return the size with a wanted throughput: size = wanted * (fixed_s + per_token_s * size)."""
    spare = 1 - wanted * per_token_s
    return wanted * fixed_s / spare if spare > 0 else inf


def _without_delay(sums: BatchTimeModel, *, work: float, num_tasks: int, seconds: float) -> float:
    """Return the seconds of a batch with only a part of its delay, which is capped."""
    if not sums.weight:
        return seconds
    # Without a fit, expect the mean time, scaled up where the batch is above the mean size.
    expected = sums.y / sums.weight * max(1.0, work * sums.weight / sums.x) if sums.x else inf
    fit = _fit(sums)
    if fit is not None:
        expected = min(expected, fit.seconds(work, num_tasks))
    delay = min(seconds - expected, expected)
    return expected + DELAY_SHARE * delay if delay > 0 else seconds


def _fit(sums: BatchTimeModel) -> LinearFit | None:
    """Fit the seconds of batches by least squares; None if batch sizes vary too little.

    The time of a task follows from the variation of the number of tasks that batch sizes do not
    explain (Frisch and Waugh 1933). Without such variation the time of a task stays as it was.
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
