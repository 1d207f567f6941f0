"""One optimizer step at a time along a schedule, and the best parameters so far."""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor, optim
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR

from nunatak_model import Encoding
from nunatak_training import recipes
from nunatak_training.errors import TrainingDivergedError
from nunatak_training.recipes import Precision, Recipe, Schedule
from nunatak_training.regularizers import Regularizer
from nunatak_training.report import EpochResult

HEAD_PREFIX = "head."
MAX_EVALUATIONS = 20
"""Most scored epochs. Tiny data needs very many epochs, and scoring each would take most of the
time."""
Tensors = dict[str, Tensor]


@contextmanager
def seeded(seed: int, device: torch.device) -> Generator[None]:
    """Seed torch's random state, for shuffling and dropout, during the block."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    num_epochs: int
    steps_per_epoch: int
    warmup_steps: int
    schedule: Schedule = Schedule.LINEAR

    @property
    def num_steps(self) -> int:
        return self.num_epochs * self.steps_per_epoch

    def is_evaluated(self, epoch: int) -> bool:
        """Epochs count from 1; always after the last."""
        return epoch % math.ceil(self.num_epochs / MAX_EVALUATIONS) == 0 or epoch == self.num_epochs

    def rate_factor(self, step: int) -> float:
        """Share of the full rate at a step (from 0): a linear rise, then the schedule."""
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


def course_of(recipe: Recipe, *, steps_per_epoch: int) -> Course:
    num_epochs = max(recipe.epochs, math.ceil(recipe.min_steps / steps_per_epoch))
    return Course(
        num_epochs=num_epochs,
        steps_per_epoch=steps_per_epoch,
        warmup_steps=math.ceil(recipe.warmup_share * num_epochs * steps_per_epoch),
        schedule=recipe.schedule,
    )


def build_optimizer(parameters: Mapping[str, Tensor], recipe: Recipe) -> optim.Optimizer:
    """The head at its own rate, vectors without decay."""
    head_rate = recipe.head_learning_rate or recipe.learning_rate
    groups: list[dict[str, object]] = []
    for is_head, rate in ((False, recipe.learning_rate), (True, head_rate)):
        # Weight decay is for matrices: norms and biases (the vectors) should not move towards zero.
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


class BatchLogits(Protocol):
    """Turns encodings into logits, differentiable in the parameters that are trained."""

    def __call__(
        self, encodings: Sequence[Encoding], *, dropout: float
    ) -> list[Float[Tensor, "*vectors outputs"]]: ...


BatchLoss = Callable[
    [Sequence[Float[Tensor, "*vectors outputs"]], Sequence[Tensor]], Float[Tensor, ""]
]
"""The loss of the logits of a batch and its targets."""


class _Gradients:
    """The dense gradients of embeddings. Their memory stays from step to step.

    Only rows of the last batch are not zero, so only these rows are set to zero again.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        self._dense = dict[int, tuple[Tensor, Tensor]]()
        """By the number of a tensor, with the rows that the last step has set."""

    def make_dense(self) -> None:
        for number, tensor in enumerate(self._tensors):
            if tensor.grad is None or not tensor.grad.is_sparse:
                continue
            sparse = tensor.grad.coalesce()
            (rows,) = sparse.indices()
            dense, earlier = self._dense.get(number) or (torch.zeros_like(tensor), rows)
            dense.index_fill_(0, earlier, 0.0).index_copy_(0, rows, sparse.values())
            self._dense[number] = dense, rows
            tensor.grad = dense


class Stepper:
    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        recipe: Recipe,
        course: Course,
        regularizer: Regularizer | None = None,
    ) -> None:
        self._tensors = [tensor.requires_grad_() for tensor in parameters.values()]
        self._recipe = recipe
        self._gradients = _Gradients(self._tensors)
        self._regularizer = regularizer or Regularizer()
        self._optimizer = build_optimizer(parameters, recipe)
        self._schedule = LambdaLR(self._optimizer, course.rate_factor)
        self.course = course
        self._device_type = self._tensors[0].device.type
        self.num_steps = 0

    def begin_epoch(self, epoch: int) -> None:
        self._regularizer.begin_epoch(epoch)

    def step(self, batch_loss: Callable[[], Float[Tensor, ""]]) -> float:
        """Move all parameters one step down the gradient; return the loss before."""
        self.num_steps += 1
        self._regularizer.before_forward()
        # Under autocast, products read rounded copies of the weights, which stay float32. With the
        # range of float32, bfloat16 needs no scaled loss.
        is_rounded = self._recipe.precision is Precision.BFLOAT16
        with torch.autocast(self._device_type, torch.bfloat16, enabled=is_rounded):
            loss = batch_loss()
        self._optimizer.zero_grad()
        loss.backward()
        self._gradients.make_dense()
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
        """The optimizer's state of each parameter, named `NUMBER.WHAT`."""
        state: dict[int, dict[str, Tensor]] = self._optimizer.state_dict()["state"]
        return {
            f"{number}.{what}": value
            for number, values in state.items()
            for what, value in values.items()
        }

    def resume(self, num_steps: int, moments: Mapping[str, Tensor]) -> None:
        state = dict[int, Tensors]()
        for name, value in moments.items():
            number, _, what = name.partition(".")
            state.setdefault(int(number), {})[what] = value
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": state})
        self.num_steps = num_steps
        # A schedule that begins at a later step computes the rates of the step from the initial
        # rates.
        self._schedule = LambdaLR(
            self._optimizer, self.course.rate_factor, last_epoch=num_steps - 1
        )


@dataclass(slots=True, kw_only=True)
class Best:
    """A copy of the parameters after the best epoch so far."""

    result: EpochResult | None = None
    parameters: Tensors = field(default_factory=Tensors)

    @property
    def epoch(self) -> int:
        return 0 if self.result is None else self.result.epoch

    def offer(self, result: EpochResult, parameters: Mapping[str, Tensor]) -> None:
        # The loss decides between equal scores, which are frequent on small dev sets.
        if self.result is not None and _rank(result) <= _rank(self.result):
            return
        self.result = result
        self.parameters = {name: tensor.detach().clone() for name, tensor in parameters.items()}


def _rank(result: EpochResult) -> tuple[float, float]:
    return result.dev_score, -result.dev_loss
