"""Training one encoder on several tasks at once."""

# torch types some of its functions partly.
# pyright: reportUnknownMemberType=false

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import fmean
from typing import cast

import torch
from torch import Tensor

from nunatak_artifact import method_of
from nunatak_model import Backbone, Full
from nunatak_training.data import TaskData
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.multitask.tasks import TaskInTraining, TaskScores, put_on
from nunatak_training.optimizer import HEAD_PREFIX, course_of
from nunatak_training.randomness import seeded
from nunatak_training.recipes import Recipe
from nunatak_training.regularizers.settings import RegularizerName
from nunatak_training.report import EpochResult, Report
from nunatak_training.stepping import Best, Stepper

MIN_TASKS = 2


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
    tasks: Mapping[str, TaskData], recipe: Recipe, backbone: Backbone, *, report: Report
) -> FittedEncoder:
    """Train a copy of the backbone's encoder on all tasks, each with a head of its own.

    Every batch is of one task; the batches of all tasks come in one random order, drawn anew in
    each epoch (Liu et al. 2019, algorithm 1), so a task has weight by its size. The epoch with the
    highest mean of the tasks' main metrics is kept, where the paper keeps the last. The same
    arguments give the same bytes on a CPU.

    Args:
        tasks: by name; two or more.
        recipe: of the method `full`, without regularizer, pretraining or metric.
        backbone: what training starts from; it is read and never written.
        report: is told of every step and epoch.

    Raises:
        InvalidRecipeError: the recipe does not fit, or there are fewer than two tasks.
        TrainingDivergedError: the loss or a gradient became infinite or NaN.
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
    stepper = Stepper({**encoder, **heads}, recipe, course)
    best, best_scores, history = Best(), dict[str, TaskScores](), list[EpochResult]()
    report.started(num_steps=course.num_steps, num_epochs=course.num_epochs)
    try:
        with seeded(recipe.seed, backbone.device):
            for epoch in range(1, course.num_epochs + 1):
                started = time.perf_counter()
                train_loss = _train_epoch(members, stepper, recipe, report)
                if not course.is_evaluated(epoch):
                    continue
                scores = {name: member.scores() for name, member in members.items()}
                result = EpochResult(
                    epoch=epoch,
                    train_loss=train_loss,
                    dev_loss=fmean(each.loss for each in scores.values()),
                    dev_score=fmean(each.main for each in scores.values()),
                    seconds=time.perf_counter() - started,
                )
                history.append(result)
                best.offer(result, encoder)
                if best.epoch == epoch:
                    best_scores = scores
                report.evaluated(result)
    finally:
        report.ended()
    return FittedEncoder(
        parameters=best.parameters,
        scores=best_scores,
        best_epoch=best.epoch,
        history=tuple(history),
    )


def _train_epoch(
    members: Mapping[str, TaskInTraining], stepper: Stepper, recipe: Recipe, report: Report
) -> float:
    """Take one step for each batch of every task, in a random order; return the mean loss."""
    batches = list(chain.from_iterable(_batches(each, recipe) for each in members.values()))
    losses = list[float]()
    for index in _shuffled(len(batches)):
        member, batch = batches[index]
        loss_of = partial(member.loss, batch, dropout=recipe.dropout)
        losses.append(stepper.step(loss_of))
        report.stepped(loss=losses[-1])
    return fmean(losses)


def _batches(member: TaskInTraining, recipe: Recipe) -> list[tuple[TaskInTraining, list[int]]]:
    order, size = _shuffled(len(member.train.encodings)), recipe.batch_size
    return [(member, order[start : start + size]) for start in range(0, len(order), size)]


def _shuffled(count: int) -> list[int]:
    return cast("list[int]", torch.randperm(count).tolist())


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
