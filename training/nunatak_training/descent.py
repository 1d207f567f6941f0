"""Gradient descent along a course, for whatever gives a loss."""

# torch types some of its functions partly.
# pyright: reportUnknownMemberType=false

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from nunatak_training.errors import TrainingDivergedError
from nunatak_training.optimizer import Course, build_optimizer, build_schedule
from nunatak_training.recipes import Recipe


class Descent:
    """Moves parameters, in place, by the optimizer, schedule and clipping of a recipe."""

    def __init__(self, parameters: Mapping[str, Tensor], recipe: Recipe, course: Course) -> None:
        self._tensors = [tensor.requires_grad_() for tensor in parameters.values()]
        self._recipe = recipe
        self._optimizer = build_optimizer(parameters, recipe)
        self._schedule = build_schedule(self._optimizer, course)
        self._num_steps = 0

    def step(self, loss: Float[Tensor, ""]) -> float:
        """Move everything once down the gradient of a loss, and return its value.

        Raises:
            TrainingDivergedError: the loss or a gradient became infinite or NaN.
        """
        self._num_steps += 1
        self._optimizer.zero_grad()
        loss.backward()
        norm = clip_grad_norm_(self._tensors, self._recipe.max_grad_norm)
        value = loss.item()
        if not math.isfinite(value) or not torch.isfinite(norm):
            raise TrainingDivergedError(self._num_steps, self._recipe.learning_rate)
        self._optimizer.step()
        self._schedule.step()
        return value


@contextmanager
def seeded(seed: int, device: torch.device) -> Generator[None]:
    """Seed torch's random state for a while: shuffling and dropout draw from it."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
