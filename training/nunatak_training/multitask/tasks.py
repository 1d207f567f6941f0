"""One of the tasks that train a shared encoder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Generator, Tensor

from nunatak_model import Backbone
from nunatak_model.heads import initial_head
from nunatak_training.data import TaskData
from nunatak_training.fitting import branch_logits, branch_spec, check_recipe
from nunatak_training.loop.encoded import EncodedSet
from nunatak_training.loop.fit import predict
from nunatak_training.loop.stepping import BatchLogits
from nunatak_training.metrics import Metric
from nunatak_training.objectives import Objective, objective_of
from nunatak_training.recipes import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScores:
    """What the dev examples of one task say."""

    loss: float
    metrics: Mapping[Metric, float]
    """The one that the task is usually chosen by comes first."""

    @property
    def main(self) -> float:
        """The first metric."""
        return next(iter(self.metrics.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInTraining:
    """Examples, head and loss of one task, on an encoder that others move too."""

    data: TaskData
    objective: Objective
    train: EncodedSet
    dev: EncodedSet
    head: Mapping[str, Tensor]
    """By names that begin with `head.`."""
    logits: BatchLogits

    def loss(self, batch: Sequence[int], *, dropout: float) -> Float[Tensor, ""]:
        """The loss of train encodings, given by their numbers."""
        encodings = [self.train.encodings[index] for index in batch]
        targets = [self.train.targets[index] for index in batch]
        return self.objective.loss(self.logits(encodings, dropout=dropout), targets)

    def scores(self) -> TaskScores:
        """What the dev examples say now."""
        logits = predict(self.logits, self.dev.encodings)
        statistics = self.objective.statistics(self.data.dev, self.dev, logits)
        return TaskScores(
            loss=self.objective.loss(logits, self.dev.targets).item(),
            metrics={metric: statistics.value(metric) for metric in self.objective.reported},
        )


def put_on(
    encoder: Mapping[str, Tensor],
    data: TaskData,
    *,
    recipe: Recipe,
    backbone: Backbone,
    generator: Generator,
) -> TaskInTraining:
    """Give a task a fresh head on an encoder; the encoder's tensors are referred to, not copied.

    Raises:
        InvalidRecipeError: the recipe does not fit the data or the backbone.
    """
    check_recipe(recipe, data, backbone)
    objective = objective_of(data)
    train, dev = (
        objective.encode(part, backbone.tokenizer, max_length=recipe.max_length)
        for part in (data.train, data.dev)
    )
    spec = branch_spec(recipe, backbone, kind=data.kind.head, num_outputs=len(data.labels))
    head = initial_head(spec.head, backbone, generator)
    return TaskInTraining(
        data=data,
        objective=objective,
        train=train,
        dev=dev,
        head=head,
        logits=branch_logits(backbone, spec, {**encoder, **head}),
    )
