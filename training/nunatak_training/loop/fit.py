"""The training loop.

It moves the tensors of one task and nothing else. What they mean is the business of the function
that turns encodings into logits; the loop knows encodings, targets and a recipe.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from nunatak_model import Encoding
from nunatak_training.loop.checkpoints import Checkpoint
from nunatak_training.loop.encoded import EncodedSet
from nunatak_training.loop.epochs import DevScore, Epochs, TrainBatch, shuffled_batches
from nunatak_training.loop.optimizer import plan_course
from nunatak_training.loop.randomness import seeded
from nunatak_training.loop.resuming import LoopState, Place, resume
from nunatak_training.loop.stepping import BatchLogits, BatchLoss, Best, Stepper
from nunatak_training.recipes import Recipe
from nunatak_training.regularizers import build_regularizer, check_course, random_source
from nunatak_training.report import EpochResult, Report

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

    def batches(place: Place) -> list[TrainBatch]:
        regularizer.begin_epoch(place.epoch)
        count = len(train.encodings)
        return shuffled_batches(place, count=count, size=recipe.batch_size, loss=loss_of)

    def scored() -> DevScore:
        logits = predict(batch_logits, dev.encodings)
        return DevScore(loss=batch_loss(logits, dev.targets).item(), score=dev_score(logits))

    report.started(num_steps=course.num_steps, num_epochs=course.num_epochs)
    try:
        with seeded(recipe.seed, randomness.device):
            resume(state, checkpoint, report)
            Epochs(
                state=state,
                course=course,
                batches=batches,
                dev_score=scored,
                checkpoint=checkpoint,
                report=report,
            ).run()
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
