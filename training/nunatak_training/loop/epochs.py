"""Walking the epochs of a run: steps, scores, and checkpoints between any two steps."""

# torch types some of its functions partly.
# pyright: reportUnknownMemberType=false

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from nunatak_training.loop.checkpoints import Checkpoint
from nunatak_training.loop.optimizer import Course
from nunatak_training.loop.resuming import LoopState, Place, snapshot
from nunatak_training.report import EpochResult, Report


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """What one step is taken on."""

    weight: int
    """Of its loss in the mean of the epoch."""
    loss: Callable[[], Float[Tensor, ""]]


def shuffled_batches(
    place: Place, *, count: int, size: int, loss: Callable[[Sequence[int]], Float[Tensor, ""]]
) -> list[TrainBatch]:
    """Cut `count` examples into batches, in the epoch's order, which is drawn if there is none."""
    place.order = place.order or cast("list[int]", torch.randperm(count).tolist())
    chunks = [place.order[start : start + size] for start in range(0, count, size)]
    return [TrainBatch(weight=len(chunk), loss=partial(loss, chunk)) for chunk in chunks]


@dataclass(frozen=True, slots=True, kw_only=True)
class DevScore:
    """What the dev examples say after an epoch."""

    loss: float
    score: float
    """Higher is better; the epoch with the highest is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epochs:
    """The epochs of one run."""

    state: LoopState
    course: Course
    batches: Callable[[Place], Sequence[TrainBatch]]
    """All batches of the epoch at a place, in their order; called again where a killed run goes on,
    and then gives the same."""
    dev_score: Callable[[], DevScore] | None
    """Absent: no epoch is better than another, and the last is what counts."""
    checkpoint: Checkpoint | None
    report: Report

    def run(self) -> None:
        """Run the epochs that are left; score those that the course says."""
        state = self.state
        while (epoch := state.place.epoch) <= self.course.num_epochs:
            started = time.perf_counter()
            train_loss = self._run_epoch()
            if self.dev_score is not None and self.course.is_evaluated(epoch):
                found = self.dev_score()
                result = EpochResult(
                    epoch=epoch,
                    step=state.stepper.num_steps,
                    train_loss=train_loss,
                    dev_loss=found.loss,
                    dev_score=found.score,
                    seconds=time.perf_counter() - started,
                )
                state.history.append(result)
                state.best.offer(result, state.parameters)
                self.report.evaluated(result)
            state.place = Place(epoch=epoch + 1)
            self._save_if_due()

    def _run_epoch(self) -> float:
        """Take one step for each batch that is left, and return the mean loss of all."""
        place = self.state.place
        batches = self.batches(place)
        while place.num_done < len(batches):
            batch = batches[place.num_done]
            loss = self.state.stepper.step(batch.loss)
            place.total_loss += loss * batch.weight
            place.num_done += 1
            self.report.stepped(loss=loss)
            self._save_if_due()
        return place.total_loss / sum(batch.weight for batch in batches)

    def _save_if_due(self) -> None:
        if self.checkpoint is not None and self.checkpoint.is_due:
            self.checkpoint.save(snapshot(self.state))
