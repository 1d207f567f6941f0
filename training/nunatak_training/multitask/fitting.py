"""Training one encoder on several tasks at once."""

# torch types some of its functions partly.
# pyright: reportUnknownMemberType=false

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import cast

import torch
from torch import Tensor

from nunatak_artifact import method_of
from nunatak_model import Backbone, Full
from nunatak_training.data import TaskData
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.loop.checkpoints import Checkpoint
from nunatak_training.loop.epochs import DevScore, Epochs, TrainBatch
from nunatak_training.loop.optimizer import HEAD_PREFIX, course_of
from nunatak_training.loop.randomness import seeded
from nunatak_training.loop.resuming import LoopState, Place, resume
from nunatak_training.loop.stepping import Best, Stepper
from nunatak_training.multitask.tasks import TaskInTraining, TaskScores, put_on
from nunatak_training.recipes import Recipe
from nunatak_training.regularizers import random_source
from nunatak_training.regularizers.settings import RegularizerName
from nunatak_training.report import EpochResult, Report

MIN_TASKS = 2
EPOCHS_PER_SEED = 2**20
"""More than any run has, so that no two epochs of seeds below 2**41 share their order."""
SEED_MODULUS = 2**61 - 1
"""Brings larger seeds into what torch takes; a prime, so that they fall between the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedEncoder:
    """An encoder after the epoch in which its tasks did best together."""

    parameters: Mapping[str, Tensor]
    """Of embeddings and layers, by our names; heads are thrown away."""
    scores: Mapping[str, TaskScores]
    """Of each task, with the head that was trained along."""
    best_epoch: int
    history: tuple[EpochResult, ...]
    """Scores and losses are means over the tasks."""


def fit_encoder(
    tasks: Mapping[str, TaskData],
    recipe: Recipe,
    backbone: Backbone,
    *,
    report: Report,
    checkpoint: Checkpoint | None = None,
) -> FittedEncoder:
    """Train a copy of the backbone's encoder on all tasks, each with a head of its own.

    Every batch is of one task; the batches of all tasks come in one random order, drawn anew in
    each epoch (Liu et al. 2019, algorithm 1), so a task has weight by its size. The epoch with the
    highest mean of the tasks' main metrics is kept, where the paper keeps the last. The same
    arguments give the same bytes on a CPU, also where `checkpoint` holds the beginning of the run.

    Args:
        tasks: by name; two or more.
        recipe: of the method `full`, without regularizer, pretraining or metric.
        backbone: what training starts from; it is read and never written.
        report: is told of every step and epoch.
        checkpoint: where the state of the run is kept, and the beginning of a killed one is found.

    Raises:
        InvalidRecipeError: the recipe does not fit, or there are fewer than two tasks.
        TrainingDivergedError: the loss or a gradient became infinite or NaN.
        CacheError: the checkpoint cannot be written.
    """
    _check(recipe, tasks)
    generator = torch.Generator().manual_seed(recipe.seed)
    encoder = Full().initial_parameters(backbone, generator)
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
    course = course_of(recipe, steps_per_epoch=sum(num_batches))
    parameters = {**encoder, **heads}
    state = LoopState(
        parameters=parameters,
        stepper=Stepper(parameters, recipe, course),
        randomness=random_source(parameters, seed=recipe.seed),
        best=Best(),
        place=Place(),
        history=[],
    )

    def scored() -> DevScore:
        scores = [member.scores() for member in members.values()]
        loss, score = fmean(each.loss for each in scores), fmean(each.main for each in scores)
        return DevScore(loss=loss, score=score)

    report.started(num_steps=course.num_steps, num_epochs=course.num_epochs)
    try:
        with seeded(recipe.seed, backbone.device):
            resume(state, checkpoint, report)
            Epochs(
                state=state,
                course=course,
                batches=lambda place: _batches(members.values(), recipe, epoch=place.epoch),
                dev_score=scored,
                checkpoint=checkpoint,
                report=report,
            ).run()
    finally:
        report.ended()
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
    """The batches of all tasks in the order of an epoch, which seed and epoch alone determine."""
    # A run that goes on in the middle of an epoch draws them again.
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
    if not isinstance(method_of(recipe.method), Full):
        raise InvalidRecipeError(f"multi-task training is of method full, got {recipe.method.kind}")
    unused = {
        "regularizer": recipe.regularizer.name is not RegularizerName.NONE,
        "tapt": recipe.tapt is not None,
        "metric": recipe.metric is not None,
    }
    for name, is_set in unused.items():
        if is_set:
            raise InvalidRecipeError(f"multi-task training has no {name}; leave it out")
