"""The training loop.

It moves the tensors of one task and nothing else. What they mean is the business of the function
that turns encodings into logits; the loop knows encodings, targets and a recipe.
"""

# torch types some of its functions partly.
# pyright: reportUnknownMemberType=false

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from nunatak_model import Encoding
from nunatak_training.encoded import EncodedSet
from nunatak_training.errors import TrainingDivergedError
from nunatak_training.optimizer import Course, build_optimizer, build_schedule, plan_course
from nunatak_training.recipes import Recipe
from nunatak_training.regularizers import Regularizer, build_regularizer, check_course
from nunatak_training.report import EpochResult, Report

EVALUATION_BATCH_SIZE = 64


class BatchLogits(Protocol):
    """Turns encodings into logits, differentiable in the parameters that are trained."""

    def __call__(
        self, encodings: Sequence[Encoding], *, dropout: float
    ) -> list[Float[Tensor, "*vectors outputs"]]:
        """Return the logits of each encoding, in order: one vector, or one for each token."""
        ...


class BatchLoss(Protocol):
    """Tells how far logits are from what they should be."""

    def __call__(
        self, logits: Sequence[Float[Tensor, "*vectors outputs"]], targets: Sequence[Tensor]
    ) -> Float[Tensor, ""]:
        """Return the loss of a batch."""
        ...


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
) -> FitResult:
    """Train `parameters` in place and return a copy of them after the best epoch.

    The same arguments give the same bytes on a CPU. The caller's random state is left as it was.

    Raises:
        InvalidRecipeError: the regularizer has nothing to do in so few epochs.
        TrainingDivergedError: the loss or a gradient became infinite or NaN.
    """
    course = plan_course(recipe, len(train.encodings))
    check_course(recipe.regularizer, num_epochs=course.num_epochs)
    regularizer = build_regularizer(
        recipe.regularizer, parameters, num_epochs=course.num_epochs, seed=recipe.seed
    )
    stepper = _Stepper(parameters, batch_logits, batch_loss, recipe, course, regularizer)
    history: list[EpochResult] = []
    best = _Best()
    report.started(num_steps=course.num_steps, num_epochs=course.num_epochs)
    try:
        with _seeded(recipe.seed, next(iter(parameters.values())).device):
            for epoch in range(1, course.num_epochs + 1):
                started = time.perf_counter()
                regularizer.begin_epoch(epoch)
                train_loss = _train_epoch(stepper, train, recipe.batch_size, report)
                if not course.is_evaluated(epoch):
                    continue
                logits = predict(batch_logits, dev.encodings)
                result = EpochResult(
                    epoch=epoch,
                    train_loss=train_loss,
                    dev_loss=batch_loss(logits, dev.targets).item(),
                    dev_score=dev_score(logits),
                    seconds=time.perf_counter() - started,
                )
                history.append(result)
                best.offer(result, parameters)
                report.evaluated(result)
    finally:
        report.ended()
    return FitResult(parameters=best.parameters, best_epoch=best.epoch, history=tuple(history))


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


class _Best:
    """Keeps a copy of the parameters after the best epoch so far."""

    def __init__(self) -> None:
        self.epoch = 0
        self.parameters: dict[str, Tensor] = {}
        self._rank = (-math.inf, -math.inf)

    def offer(self, result: EpochResult, parameters: Mapping[str, Tensor]) -> None:
        # The loss decides between equal scores, which small dev sets give often.
        rank = (result.dev_score, -result.dev_loss)
        if rank > self._rank or not self.epoch:
            self._rank = rank
            self.epoch = result.epoch
            self.parameters = {name: tensor.detach().clone() for name, tensor in parameters.items()}


class _Stepper:
    """One optimizer step at a time along the course."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        batch_logits: BatchLogits,
        batch_loss: BatchLoss,
        recipe: Recipe,
        course: Course,
        regularizer: Regularizer,
    ) -> None:
        self._tensors = [tensor.requires_grad_() for tensor in parameters.values()]
        self._batch_logits = batch_logits
        self._batch_loss = batch_loss
        self._recipe = recipe
        self._regularizer = regularizer
        self._optimizer = build_optimizer(parameters, recipe)
        self._schedule = build_schedule(self._optimizer, course)
        self._num_steps = 0

    def step(self, encodings: Sequence[Encoding], targets: Sequence[Tensor]) -> float:
        """Move all parameters once and return the loss before the move."""
        self._num_steps += 1
        self._regularizer.before_forward()
        logits = self._batch_logits(encodings, dropout=self._recipe.dropout)
        loss = self._batch_loss(logits, targets)
        self._optimizer.zero_grad()
        loss.backward()
        self._regularizer.after_backward()
        norm = clip_grad_norm_(self._tensors, self._recipe.max_grad_norm)
        value = loss.item()
        if not math.isfinite(value) or not torch.isfinite(norm):
            raise TrainingDivergedError(self._num_steps, self._recipe.learning_rate)
        self._optimizer.step()
        self._regularizer.after_step()
        self._schedule.step()
        return value


def _train_epoch(stepper: _Stepper, train: EncodedSet, batch_size: int, report: Report) -> float:
    """Take one step per batch of a fresh random order; return the mean loss of an example."""
    num_examples = len(train.encodings)
    order = cast("list[int]", torch.randperm(num_examples).tolist())
    total = 0.0
    for start in range(0, num_examples, batch_size):
        batch = order[start : start + batch_size]
        encodings = [train.encodings[index] for index in batch]
        loss = stepper.step(encodings, [train.targets[index] for index in batch])
        total += loss * len(encodings)
        report.stepped(loss=loss)
    return total / num_examples


@contextmanager
def _seeded(seed: int, device: torch.device) -> Generator[None]:
    """Seed torch's random state for a while: shuffling and dropout draw from it."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
