"""The loss along the line through the parameters before and after training.

He et al. 2021 (arXiv:2106.03164), sec. 5 and figure 6, after Li et al. 2018: f(a) =
L(t0 + a (t1 - t0)) for 20 values of a in [-2, 2], and also at 0 and 1, which are not among the 20.
The model before training is at a = 0, and the trained model at a = 1. A wide basin around 1 is
typical of a model that generalises.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from nunatak_model import Backbone
from nunatak_training.data import ExampleSet
from nunatak_training.fitting import TrainedTask, branch_logits, starting_parameters
from nunatak_training.kinds import TaskKind
from nunatak_training.loop.fit import predict
from nunatak_training.objectives import objective_of
from nunatak_training.objectives.base import stacked
from nunatak_training.report import Report

NUM_POINTS, FIRST, LAST = 20, -2.0, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePoint:
    """The loss at one point of the line."""

    alpha: float
    loss: float


def line_losses(
    start: Mapping[str, Tensor],
    end: Mapping[str, Tensor],
    loss_of: Callable[[Mapping[str, Tensor]], float],
    *,
    num_points: int = NUM_POINTS,
) -> tuple[LinePoint, ...]:
    """Evaluate `loss_of` at evenly spaced points from `FIRST` to `LAST`, and at both models."""
    step = (LAST - FIRST) / (num_points - 1)
    alphas = sorted({0.0, 1.0, *(FIRST + step * point for point in range(num_points))})
    return tuple(
        LinePoint(
            alpha=alpha,
            loss=loss_of({name: start[name] + alpha * (end[name] - start[name]) for name in end}),
        )
        for alpha in alphas
    )


def landscape(
    trained: TrainedTask, backbone: Backbone, examples: ExampleSet
) -> tuple[LinePoint, ...]:
    """Return the loss of examples along the line of a trained task, head and adapters included.

    The recipe gives the parameters before training; if the recipe says so, they are pretrained
    again. The loss of a regression is the squared error in the units of the values. The loss in
    training differs from it by a factor.
    """
    recipe = trained.recipe
    objective = objective_of(trained.data, positive_label=recipe.positive_label)
    texts, encoded = (
        objective.encode(part, backbone.tokenizer, max_length=recipe.max_length)
        for part in (trained.data.train, examples)
    )
    start = objective.finished(
        starting_parameters(trained.spec, recipe, texts.encodings, backbone, report=Report())
    )

    def loss_of(parameters: Mapping[str, Tensor]) -> float:
        logits = predict(branch_logits(backbone, trained.spec, parameters), encoded.encodings)
        if trained.data.kind is TaskKind.REGRESSION:
            return _squared_error(logits, examples.labels(float))
        return objective.loss(logits, encoded.targets).item()

    return line_losses(start, trained.parameters, loss_of)


def _squared_error(logits: Sequence[Tensor], values: Sequence[float]) -> float:
    predicted, right = stacked(logits, [torch.tensor([value]) for value in values])
    return functional.mse_loss(predicted, right).item()
