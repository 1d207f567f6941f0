"""Multi-task training of one encoder (MT-DNN), which then serves as the backbone of its tasks.

Liu et al. 2019 (arXiv:1901.11504), sec. 3.3. Lee, Tang, Lin 2019 (arXiv:1911.03090), sec. 3.1,
freeze the lower layers of such an encoder for all tasks.

`fit_encoder` trains on loaded tasks. `train_backbone` reads the tasks and writes a folder.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import cast

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from nunatak_contract.methods import Full
from nunatak_contract.names import check_task_name
from nunatak_exchange.checkpoint import check_new
from nunatak_exchange.transformers_export import check_exportable, export_backbone
from nunatak_model import Backbone, load_backbone, maths_of
from nunatak_model.heads import initial_head
from nunatak_training.data import TaskData, load_task_data
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.fitting import branch_logits, branch_spec, check_recipe
from nunatak_training.kinds import Metric, TaskKind
from nunatak_training.loop.checkpoint import SavedRun, run_checkpoint
from nunatak_training.loop.fit import DevScore, EncodedSet, TrainBatch, predict, run_epochs
from nunatak_training.loop.step import HEAD_PREFIX, BatchLogits
from nunatak_training.objectives import Objective, objective_of
from nunatak_training.recipes import Recipe, RegularizerName
from nunatak_training.report import EpochResult, Report

MIN_TASKS = 2
EPOCHS_PER_SEED = 2**20
"""More epochs than any run has, so that each pair of seed (below 2**41) and epoch has its own
order."""
SEED_MODULUS = 2**61 - 1
"""Brings larger seeds into torch's range. A prime, so that such seeds fall between the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScores:
    loss: float
    metrics: Mapping[Metric, float]
    """The task's main metric comes first."""

    @property
    def main(self) -> float:
        return next(iter(self.metrics.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInTraining:
    """Examples, head and loss of one task, on an encoder that other tasks also train."""

    data: TaskData
    objective: Objective
    train: EncodedSet
    dev: EncodedSet
    head: Mapping[str, Tensor]
    logits: BatchLogits

    def loss(self, batch: Sequence[int], *, dropout: float) -> Float[Tensor, ""]:
        encodings = [self.train.encodings[index] for index in batch]
        targets = [self.train.targets[index] for index in batch]
        return self.objective.loss(self.logits(encodings, dropout=dropout), targets)

    def scores(self) -> TaskScores:
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
    """The encoder's tensors are shared, not copied; the head is fresh."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedEncoder:
    """An encoder after the epoch with the best mean score of its tasks."""

    parameters: Mapping[str, Tensor]
    """By our names; heads are discarded."""
    scores: Mapping[str, TaskScores]
    """With the heads from this training."""
    best_epoch: int
    history: tuple[EpochResult, ...]
    """Means over the tasks."""


def fit_encoder(
    tasks: Mapping[str, TaskData],
    recipe: Recipe,
    backbone: Backbone,
    *,
    report: Report,
    checkpoint: SavedRun | None = None,
) -> FittedEncoder:
    """Train a copy of the backbone's encoder on all tasks, each with its own head.

    Every batch belongs to one task. Each epoch draws one random order of the batches of all tasks
    (Liu et al. 2019, algorithm 1), so larger tasks have more weight. The epoch with the highest
    mean of the tasks' main metrics is kept; the paper keeps the last. On a CPU, the same arguments
    give the same bytes, also after a kill.
    """
    _check(recipe, tasks)
    generator = torch.Generator().manual_seed(recipe.seed)
    encoder = maths_of(Full()).initial_parameters(backbone, generator)
    members = {
        name: put_on(encoder, data, recipe=recipe, backbone=backbone, generator=generator)
        for name, data in tasks.items()
    }
    heads = {
        f"{HEAD_PREFIX}{name}.{part}": tensor
        for name, member in members.items()
        for part, tensor in member.head.items()
    }
    num_batches = [
        math.ceil(len(it.train.encodings) / recipe.batch_size) for it in members.values()
    ]
    parameters = {**encoder, **heads}

    def scored() -> DevScore:
        scores = [member.scores() for member in members.values()]
        loss, score = fmean(each.loss for each in scores), fmean(each.main for each in scores)
        return DevScore(loss=loss, score=score)

    state = run_epochs(
        parameters,
        recipe,
        steps_per_epoch=sum(num_batches),
        batches=lambda place: _batches(members.values(), recipe, epoch=place.epoch),
        dev_score=scored,
        report=report,
        checkpoint=checkpoint,
    )
    best = state.best
    with torch.no_grad():
        for name, tensor in parameters.items():
            tensor.copy_(best.parameters[name])
    return FittedEncoder(
        parameters={name: best.parameters[name] for name in encoder},
        scores={name: member.scores() for name, member in members.items()},
        best_epoch=best.epoch,
        history=tuple(state.history),
    )


def _batches(members: Iterable[TaskInTraining], recipe: Recipe, *, epoch: int) -> list[TrainBatch]:
    """In an order that depends only on seed and epoch."""
    # A run that is resumed in the middle of an epoch draws the same batches again.
    generator = torch.Generator().manual_seed(
        (recipe.seed * EPOCHS_PER_SEED + epoch) % SEED_MODULUS
    )
    batches, size = list[TrainBatch](), recipe.batch_size
    for member in members:
        order = _shuffled(len(member.train.encodings), generator)
        for start in range(0, len(order), size):
            loss = partial(member.loss, order[start : start + size], dropout=recipe.dropout)
            batches.append(TrainBatch(weight=1, loss=loss))
    return [batches[index] for index in _shuffled(len(batches), generator)]


def _shuffled(count: int, generator: torch.Generator) -> list[int]:
    return cast("list[int]", torch.randperm(count, generator=generator).tolist())


def _check(recipe: Recipe, tasks: Mapping[str, TaskData]) -> None:
    if len(tasks) < MIN_TASKS:
        raise InvalidRecipeError(f"multi-task training needs two tasks or more, got {len(tasks)}")
    if not isinstance(recipe.method, Full):
        raise InvalidRecipeError(f"multi-task training needs method full, got {recipe.method.kind}")
    unused = {
        "regularizer": recipe.regularizer.name is not RegularizerName.NONE,
        "tapt": recipe.tapt is not None,
        "metric": recipe.metric is not None,
        "calibrate": recipe.calibrate,
        "default_label": recipe.default_label is not None,
        "joined_share": recipe.joined_share > 0,
        "on_long": recipe.on_long is not None,
    }
    for name, is_set in unused.items():
        if is_set:
            raise InvalidRecipeError(f"multi-task training has no {name}; leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class MultitaskOutcome:
    folder: Path
    digest: str
    fitted: FittedEncoder
    seconds: float


def train_backbone(
    tasks: Mapping[str, str | Path],
    recipe: Recipe,
    output: Path,
    backbone: Backbone,
    *,
    kinds: Mapping[str, TaskKind | None] | None = None,
    report: Report | None = None,
    checkpoints: Path | None = None,
) -> MultitaskOutcome:
    """Read the data of all tasks, train one encoder, and write it as a new backbone.

    `tasks` names files, folders or data sets (see `load_task_data`); without a kind in `kinds`, the
    first train row decides.
    `output` is a new or empty folder, whose name becomes the backbone's. Nothing is written after
    an error. After a kill, the same call continues from the folder `checkpoints`, to the same
    weights.
    """
    started = time.perf_counter()
    check_exportable(backbone)
    check_new(output)
    data = {
        check_task_name(name): load_task_data(source, kind=(kinds or {}).get(name))
        for name, source in tasks.items()
    }
    with run_checkpoint(data, recipe, backbone, checkpoints) as checkpoint:
        fitted = fit_encoder(
            data, recipe, backbone, report=report or Report(), checkpoint=checkpoint
        )
        export_backbone(fitted.parameters, backbone, output)
    return MultitaskOutcome(
        folder=output,
        digest=load_backbone(output).digest,
        fitted=fitted,
        seconds=time.perf_counter() - started,
    )
