"""The training loop: its examples, its epochs, and checkpoints between any two steps.

The loop changes only the tensors of one task. The loop knows encodings, targets and a recipe. A
function of the caller turns encodings into logits.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor

from nunatak_model import Backbone, Branch, Encoding, Row, TrunkStates, forward
from nunatak_training.loop.checkpoint import LoopState, Place, SavedRun, restore, snapshot
from nunatak_training.loop.step import BatchLogits, BatchLoss, Stepper, course_of, seeded
from nunatak_training.recipes import Recipe
from nunatak_training.regularizers import build_regularizer, check_course, random_source
from nunatak_training.report import EpochResult, Report

T = TypeVar("T")
EVALUATION_BATCH_SIZE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedSet:
    """Encodings with their targets; a long text has several encodings."""

    encodings: tuple[Encoding, ...]
    targets: tuple[Tensor, ...]
    """One per encoding, on the CPU; only the loss knows their meaning."""
    sizes: tuple[int, ...]

    @property
    def num_long(self) -> int:
        return sum(
            any(it.part.index or it.part.num_left_out for it in found)
            for found in self.by_example(self.encodings)
        )

    def by_example(self, rows: Sequence[T]) -> Iterator[tuple[T, ...]]:
        remaining = iter(rows)
        for size in self.sizes:
            yield tuple(islice(remaining, size))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    weight: int
    """In the mean loss of the epoch."""
    loss: Callable[[], Float[Tensor, ""]]


def shuffled_batches(
    place: Place, *, count: int, size: int, loss: Callable[[Sequence[int]], Float[Tensor, ""]]
) -> list[TrainBatch]:
    """Batches in the epoch's order. A missing order is drawn first."""
    place.order = place.order or cast("list[int]", torch.randperm(count).tolist())
    chunks = [place.order[start : start + size] for start in range(0, count, size)]
    return [TrainBatch(weight=len(chunk), loss=partial(loss, chunk)) for chunk in chunks]


@dataclass(frozen=True, slots=True, kw_only=True)
class DevScore:
    loss: float
    score: float
    """Higher is better; the epoch with the highest score is kept."""


def run_epochs(  # noqa: PLR0913 - a run has many parts
    parameters: Mapping[str, Tensor],
    recipe: Recipe,
    *,
    steps_per_epoch: int,
    batches: Callable[[Place], Sequence[TrainBatch]],
    dev_score: Callable[[], DevScore] | None,
    report: Report,
    checkpoint: SavedRun | None,
    randomness: torch.Generator | None = None,
) -> LoopState:
    """Train `parameters` in place, from the checkpoint to the last epoch; return the state.

    `batches` gives all batches of the epoch at a position; a resumed run calls it again, and must
    get the same batches. Without `dev_score`, the last epoch is kept. The caller's random state
    does not change.
    """
    course = course_of(recipe, steps_per_epoch=steps_per_epoch)
    check_course(recipe.regularizer, num_epochs=course.num_epochs)
    randomness = randomness or random_source(parameters, seed=recipe.seed)
    regularizer = build_regularizer(
        recipe.regularizer, parameters, num_epochs=course.num_epochs, generator=randomness
    )
    state = LoopState(
        parameters=parameters,
        stepper=Stepper(parameters, recipe, course, regularizer),
        randomness=randomness,
    )

    def save_if_due() -> None:
        if checkpoint is not None and checkpoint.is_due:
            checkpoint.save(snapshot(state))

    report.started(num_steps=course.num_steps, num_epochs=course.num_epochs)
    try:
        with seeded(recipe.seed, next(iter(parameters.values())).device):
            if checkpoint is not None and (held := checkpoint.load()) is not None:
                restore(state, held)
                report.resumed(num_steps=state.stepper.num_steps)
            while state.place.epoch <= course.num_epochs and not _is_over(state, recipe.patience):
                epoch, started = state.place.epoch, time.perf_counter()
                train_loss = _run_epoch(state, batches, report, save_if_due)
                if dev_score is not None and course.is_evaluated(epoch):
                    found = dev_score()
                    result = EpochResult(
                        epoch=epoch,
                        step=state.stepper.num_steps,
                        train_loss=train_loss,
                        dev_loss=found.loss,
                        dev_score=found.score,
                        seconds=time.perf_counter() - started,
                    )
                    state.history.append(result)
                    state.best.offer(result, state.parameters)
                    report.evaluated(result)
                state.place = Place(epoch=epoch + 1)
                save_if_due()
    finally:
        report.ended()
    return state


def _is_over(state: LoopState, patience: int | None) -> bool:
    """Only the history decides, so that a resumed run ends at the same epoch as one without a kill.

    An equal score with a lower loss is no rise: the loss of a run that has learnt everything falls
    for very many epochs.
    """
    scores = [result.dev_score for result in state.history]
    best = scores.index(max(scores)) if scores else 0
    return patience is not None and len(scores) - 1 - best >= patience


def _run_epoch(
    state: LoopState,
    batches: Callable[[Place], Sequence[TrainBatch]],
    report: Report,
    save_if_due: Callable[[], None],
) -> float:
    """One step for each remaining batch; return the mean loss of all batches."""
    place = state.place
    state.stepper.begin_epoch(place.epoch)
    drawn = batches(place)
    while place.num_done < len(drawn):
        batch = drawn[place.num_done]
        loss = state.stepper.step(batch.loss)
        place.total_loss += loss * batch.weight
        place.num_done += 1
        report.stepped(loss=loss)
        save_if_due()
    return place.total_loss / sum(batch.weight for batch in drawn)


def fit(  # noqa: PLR0913 - a run has many parts
    parameters: Mapping[str, Tensor],
    batch_logits: BatchLogits,
    batch_loss: BatchLoss,
    *,
    train: EncodedSet,
    dev: EncodedSet,
    recipe: Recipe,
    dev_score: Callable[[Sequence[Float[Tensor, "*vectors outputs"]]], float],
    report: Report,
    checkpoint: SavedRun | None = None,
) -> LoopState:
    """Train `parameters` in place; the state has a copy of them after the best epoch.

    The same arguments give the same bytes on a CPU, also from a `checkpoint` of the same run.
    """
    count = len(train.encodings)

    def loss_of(batch: Sequence[int]) -> Float[Tensor, ""]:
        encodings = [train.encodings[index] for index in batch]
        logits = batch_logits(encodings, dropout=recipe.dropout)
        return batch_loss(logits, [train.targets[index] for index in batch])

    def scored() -> DevScore:
        logits = predict(batch_logits, dev.encodings)
        return DevScore(loss=batch_loss(logits, dev.targets).item(), score=dev_score(logits))

    return run_epochs(
        parameters,
        recipe,
        steps_per_epoch=math.ceil(count / recipe.batch_size),
        batches=lambda it: shuffled_batches(it, count=count, size=recipe.batch_size, loss=loss_of),
        dev_score=scored,
        report=report,
        checkpoint=checkpoint,
    )


def logits_of(backbone: Backbone, branch: Branch, trunk: TrunkStates | None = None) -> BatchLogits:
    """The function from encodings to logits, also while the tensors of the branch are trained."""

    def logits(
        encodings: Sequence[Encoding], *, dropout: float
    ) -> list[Float[Tensor, "*vectors outputs"]]:
        rows = [Row(encoding=encoding, branch=branch) for encoding in encodings]
        return forward(backbone, rows, dropout=dropout, trunk=trunk)

    return logits


def predict(
    batch_logits: BatchLogits, encodings: Sequence[Encoding]
) -> list[Float[Tensor, "*vectors outputs"]]:
    # Adjacent texts of one length share one product of attention.
    order = sorted(range(len(encodings)), key=lambda index: encodings[index].num_tokens)
    found = dict[int, Tensor]()
    with torch.inference_mode():
        for start in range(0, len(order), EVALUATION_BATCH_SIZE):
            chunk = order[start : start + EVALUATION_BATCH_SIZE]
            logits = batch_logits([encodings[index] for index in chunk], dropout=0.0)
            found |= dict(zip(chunk, logits, strict=True))
    return [found[index] for index in range(len(encodings))]
