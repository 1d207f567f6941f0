"""One optimizer step at a time, and the best parameters so far; both can stop and go on."""

# torch types some of its functions partly.
# pyright: reportUnknownMemberType=false

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from nunatak_model import Encoding
from nunatak_training.errors import TrainingDivergedError
from nunatak_training.loop.optimizer import Course, build_optimizer, build_schedule
from nunatak_training.recipes import Recipe
from nunatak_training.regularizers import Regularizer
from nunatak_training.regularizers.base import Unregularized
from nunatak_training.report import EpochResult

Tensors = dict[str, Tensor]


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


class Stepper:
    """One optimizer step at a time along the course."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        recipe: Recipe,
        course: Course,
        regularizer: Regularizer | None = None,
    ) -> None:
        self._tensors = [tensor.requires_grad_() for tensor in parameters.values()]
        self._recipe = recipe
        self._regularizer = regularizer or Unregularized()
        self._optimizer = build_optimizer(parameters, recipe)
        self._schedule = build_schedule(self._optimizer, course)
        self._course = course
        self.num_steps = 0

    def step(self, batch_loss: Callable[[], Float[Tensor, ""]]) -> float:
        """Move all parameters once, down the gradient of a loss, and return its value before.

        Raises:
            TrainingDivergedError: the loss or a gradient became infinite or NaN.
        """
        self.num_steps += 1
        self._regularizer.before_forward()
        loss = batch_loss()
        self._optimizer.zero_grad()
        loss.backward()
        self._regularizer.after_backward()
        norm = clip_grad_norm_(self._tensors, self._recipe.max_grad_norm)
        value = loss.item()
        if not math.isfinite(value) or not torch.isfinite(norm):
            raise TrainingDivergedError(self.num_steps, self._recipe.learning_rate)
        self._optimizer.step()
        self._regularizer.after_step()
        self._schedule.step()
        return value

    def moments(self) -> Tensors:
        """What the optimizer remembers of each parameter, named `NUMBER.WHAT`."""
        state: dict[int, dict[str, Tensor]] = self._optimizer.state_dict()["state"]
        return {
            f"{number}.{what}": value
            for number, values in state.items()
            for what, value in values.items()
        }

    def resume(self, num_steps: int, moments: Mapping[str, Tensor]) -> None:
        """Go on after so many steps, with the moments that were there."""
        state = dict[int, Tensors]()
        for name, value in moments.items():
            number, _, what = name.partition(".")
            state.setdefault(int(number), {})[what] = value
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": state})
        self.num_steps = num_steps
        # A schedule that begins at a step takes the rates of that step from the initial ones.
        self._schedule = build_schedule(self._optimizer, self._course, num_steps=num_steps)


@dataclass(slots=True, kw_only=True)
class Best:
    """A copy of the parameters after the best epoch so far."""

    epoch: int = 0
    """From 1: the highest dev score, among equal scores the lowest dev loss."""
    score: float = -math.inf
    loss: float = math.inf
    parameters: Tensors = field(default_factory=Tensors)

    def offer(self, result: EpochResult, parameters: Mapping[str, Tensor]) -> None:
        """Take the parameters if they are better."""
        # The loss decides between equal scores, which small dev sets give often.
        if self.epoch and (result.dev_score, -result.dev_loss) <= (self.score, -self.loss):
            return
        self.epoch, self.score, self.loss = result.epoch, result.dev_score, result.dev_loss
        self.parameters = {name: tensor.detach().clone() for name, tensor in parameters.items()}
