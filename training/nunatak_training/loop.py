"""The training loop.

It moves the tensors of one task and nothing else. What they mean is the business of the function
that turns encodings into logits; the loop knows encodings, targets and a recipe.
"""

# torch types some of its functions partly.
# pyright: reportUnknownMemberType=false

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from nunatak_model import Encoding
from nunatak_training.checkpoints import Checkpoint
from nunatak_training.encoded import EncodedSet
from nunatak_training.optimizer import Course, plan_course
from nunatak_training.randomness import seeded
from nunatak_training.recipes import Recipe
from nunatak_training.regularizers import (
    Regularizer,
    build_regularizer,
    check_course,
    random_source,
)
from nunatak_training.report import EpochResult, Report
from nunatak_training.resuming import LoopState, Place, resume, snapshot
from nunatak_training.stepping import BatchLogits, BatchLoss, Best, Stepper

EVALUATION_BATCH_SIZE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """The parameters after the best epoch, and how the run went."""

    parameters: dict[str, Tensor]
    best_epoch: int
    """From 1: the highest dev score, among equal scores the lowest dev loss."""
    history: tuple[EpochResult, ...]
    """Of the epochs that were scored."""


def fit(  # noqa: PLR0913 - what a run is made of
    parameters: Mapping[str, Tensor],
    batch_logits: BatchLogits,
    batch_loss: BatchLoss,
    *,
    train: EncodedSet,
    dev: EncodedSet,
    recipe: Recipe,
    dev_score: Callable[[Sequence[Float[Tensor, "*vectors outputs"]]], float],
    report: Report,
    checkpoint: Checkpoint | None = None,
) -> FitResult:
    """Train `parameters` in place and return a copy of them after the best epoch.

    The same arguments give the same bytes on a CPU, also where `checkpoint` holds the beginning
    of the run. The caller's random state is left as it was.

    Raises:
        InvalidRecipeError: the regularizer has nothing to do in so few epochs.
        TrainingDivergedError: the loss or a gradient became infinite or NaN.
        CacheError: the checkpoint cannot be written.
    """
    course = plan_course(recipe, len(train.encodings))
    check_course(recipe.regularizer, num_epochs=course.num_epochs)
    randomness = random_source(parameters, seed=recipe.seed)
    regularizer = build_regularizer(
        recipe.regularizer, parameters, num_epochs=course.num_epochs, generator=randomness
    )
    state = LoopState(
        parameters=parameters,
        stepper=Stepper(parameters, recipe, course, regularizer),
        randomness=randomness,
        best=Best(),
        place=Place(),
        history=[],
    )

    def loss_of(batch: Sequence[int]) -> Float[Tensor, ""]:
        encodings = [train.encodings[index] for index in batch]
        logits = batch_logits(encodings, dropout=recipe.dropout)
        return batch_loss(logits, [train.targets[index] for index in batch])

    def scored(epoch: int, train_loss: float, started: float) -> EpochResult:
        logits = predict(batch_logits, dev.encodings)
        return EpochResult(
            epoch=epoch,
            train_loss=train_loss,
            dev_loss=batch_loss(logits, dev.targets).item(),
            dev_score=dev_score(logits),
            seconds=time.perf_counter() - started,
        )

    report.started(num_steps=course.num_steps, num_epochs=course.num_epochs)
    try:
        with seeded(recipe.seed, randomness.device):
            resume(state, checkpoint, report)
            epochs = _Epochs(
                state,
                _Batches(num_examples=len(train.encodings), size=recipe.batch_size, loss=loss_of),
                regularizer,
                checkpoint,
                report,
            )
            epochs.run(course, scored)
    finally:
        report.ended()
    best = state.best
    return FitResult(
        parameters=best.parameters, best_epoch=best.epoch, history=tuple(state.history)
    )


def predict(
    batch_logits: BatchLogits, encodings: Sequence[Encoding]
) -> list[Float[Tensor, "*vectors outputs"]]:
    """Return the logits of all encodings, in order, without dropout or gradients."""
    # Neighbours of one length attend in one product.
    order = sorted(range(len(encodings)), key=lambda index: encodings[index].num_tokens)
    found = dict[int, Tensor]()
    with torch.inference_mode():
        for start in range(0, len(order), EVALUATION_BATCH_SIZE):
            chunk = order[start : start + EVALUATION_BATCH_SIZE]
            logits = batch_logits([encodings[index] for index in chunk], dropout=0.0)
            found |= dict(zip(chunk, logits, strict=True))
    return [found[index] for index in range(len(encodings))]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batches:
    """How the train examples are gone through."""

    num_examples: int
    size: int
    loss: Callable[[Sequence[int]], Float[Tensor, ""]]
    """Of a batch, given by the numbers of its examples."""


class _Epochs:
    """Walks a run's epochs from the place where its state stands."""

    def __init__(
        self,
        state: LoopState,
        batches: _Batches,
        regularizer: Regularizer,
        checkpoint: Checkpoint | None,
        report: Report,
    ) -> None:
        self._state = state
        self._batches = batches
        self._regularizer = regularizer
        self._checkpoint = checkpoint
        self._report = report

    def run(self, course: Course, scored: Callable[[int, float, float], EpochResult]) -> None:
        """Run the epochs that are left; score those that the course says."""
        state = self._state
        while (epoch := state.place.epoch) <= course.num_epochs:
            started = time.perf_counter()
            train_loss = self._run_epoch()
            if course.is_evaluated(epoch):
                result = scored(epoch, train_loss, started)
                state.history.append(result)
                state.best.offer(result, state.parameters)
                self._report.evaluated(result)
            state.place = Place(epoch=epoch + 1)
            self._save_if_due()

    def _run_epoch(self) -> float:
        """Take one step per batch of a random order; return the mean loss of an example."""
        place, batches = self._state.place, self._batches
        self._regularizer.begin_epoch(place.epoch)
        place.order = place.order or cast(
            "list[int]", torch.randperm(batches.num_examples).tolist()
        )
        while place.num_done < batches.num_examples:
            batch = place.order[place.num_done : place.num_done + batches.size]
            loss = self._state.stepper.step(partial(batches.loss, batch))
            place.total_loss += loss * len(batch)
            place.num_done += len(batch)
            self._report.stepped(loss=loss)
            self._save_if_due()
        return place.total_loss / batches.num_examples

    def _save_if_due(self) -> None:
        if self._checkpoint is not None and self._checkpoint.is_due:
            self._checkpoint.save(snapshot(self._state))
