"""The optimizer over the task's parameters, and the course of its learning rate."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, optim
from torch.optim.lr_scheduler import LambdaLR

from nunatak_training import recipes
from nunatak_training.recipes import Recipe, Schedule

HEAD_PREFIX = "head."
MAX_EVALUATIONS = 20
"""Tiny data goes through very many epochs, of which scoring each would cost the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How many steps a run takes."""

    num_epochs: int
    steps_per_epoch: int
    warmup_steps: int
    schedule: Schedule = Schedule.LINEAR

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.num_epochs * self.steps_per_epoch

    def is_evaluated(self, epoch: int) -> bool:
        """Whether the dev examples are scored after an epoch (from 1); the last one always is."""
        return epoch % math.ceil(self.num_epochs / MAX_EVALUATIONS) == 0 or epoch == self.num_epochs

    def rate_factor(self, step: int) -> float:
        """Share of the full learning rate at a step (from 0): a linear rise, then the schedule."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        remaining = (self.num_steps - step) / max(1, self.num_steps - self.warmup_steps)
        match self.schedule:
            case Schedule.LINEAR:
                return max(0.0, remaining)
            case Schedule.COSINE:
                return (1 - math.cos(math.pi * max(0.0, remaining))) / 2
            case Schedule.CONSTANT:
                return 1.0


def plan_course(recipe: Recipe, num_examples: int) -> Course:
    """Return the recipe's epochs, or as many as reach its `min_steps`."""
    return course_of(recipe, steps_per_epoch=math.ceil(num_examples / recipe.batch_size))


def course_of(recipe: Recipe, *, steps_per_epoch: int) -> Course:
    """Return the same where it is known how many batches an epoch has."""
    num_epochs = max(recipe.epochs, math.ceil(recipe.min_steps / steps_per_epoch))
    return Course(
        num_epochs=num_epochs,
        steps_per_epoch=steps_per_epoch,
        warmup_steps=math.ceil(recipe.warmup_share * num_epochs * steps_per_epoch),
        schedule=recipe.schedule,
    )


def build_optimizer(parameters: Mapping[str, Tensor], recipe: Recipe) -> optim.Optimizer:
    """Return the optimizer of all parameters: the head at its own rate, vectors without decay."""
    head_rate = recipe.head_learning_rate or recipe.learning_rate
    groups: list[dict[str, object]] = []
    for is_head, rate in ((False, recipe.learning_rate), (True, head_rate)):
        # Decay pulls towards zero; norms and biases (the vectors) have no business there.
        for is_matrix, decay in ((True, recipe.weight_decay), (False, 0.0)):
            members = [
                tensor
                for name, tensor in parameters.items()
                if name.startswith(HEAD_PREFIX) is is_head and (tensor.ndim > 1) is is_matrix
            ]
            if members:
                groups.append({"params": members, "lr": rate, "weight_decay": decay})
    match recipe.optimizer:
        case recipes.Optimizer.ADAMW:
            return optim.AdamW(groups, fused=True)
        case recipes.Optimizer.ADAM:
            return optim.Adam(groups, fused=True)
        case recipes.Optimizer.SGD:
            return optim.SGD(groups, fused=True)


def build_schedule(optimizer: optim.Optimizer, course: Course, *, num_steps: int = 0) -> LambdaLR:
    """Return the schedule that moves all rates along the course, after so many steps of it."""
    return LambdaLR(optimizer, course.rate_factor, last_epoch=num_steps - 1)
