"""The state of a training loop, to a snapshot and back.

What is in it is all that the next step depends on: the parameters, the optimizer's moments, the
place in the epoch and the order of its examples, three random states, and the best epoch so far.
Left out is what follows from the recipe: rates follow from the number of steps, and masks that
last for an epoch from the regularizer's seed.
"""

# torch types some of its functions partly.
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from nunatak_training.loop.checkpoints import Checkpoint, Snapshot
from nunatak_training.loop.stepping import Best, Stepper
from nunatak_training.report import EpochResult, Report

PARAMETERS, BEST, MOMENTS, RANDOM = "parameters", "best", "moments", "random"
ORDER = "order"


@dataclass(slots=True, kw_only=True)
class Place:
    """Where in its epochs a loop stands."""

    epoch: int = 1
    order: list[int] = field(default_factory=list[int])
    """Of the examples of this epoch; empty before its first step, and where seed and epoch tell."""
    num_done: int = 0
    """Batches of this epoch that were trained on."""
    total_loss: float = 0.0
    """Of those, by their weights."""


@dataclass(slots=True, kw_only=True)
class LoopState:
    """What changes while a loop runs."""

    parameters: Mapping[str, Tensor]
    stepper: Stepper
    randomness: torch.Generator
    """The regularizer's own."""
    best: Best
    place: Place
    history: list[EpochResult]


class _Facts(BaseModel):
    """What of a state is no tensor."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    num_steps: int
    epoch: int
    num_done: int
    total_loss: float
    best_epoch: int
    best_score: float
    best_loss: float
    history: tuple[EpochResult, ...]


def snapshot(state: LoopState) -> Snapshot:
    """Return what the loop depends on from here; tensors are those of the loop, not copies."""
    place, best = state.place, state.best
    facts = _Facts(
        num_steps=state.stepper.num_steps,
        epoch=place.epoch,
        num_done=place.num_done,
        total_loss=place.total_loss,
        best_epoch=best.epoch,
        best_score=best.score,
        best_loss=best.loss,
        history=tuple(state.history),
    )
    tensors = {
        **_named(PARAMETERS, state.parameters),
        **_named(BEST, best.parameters),
        **_named(MOMENTS, state.stepper.moments()),
        **_named(RANDOM, _random_states(state.randomness)),
        ORDER: torch.tensor(place.order, dtype=torch.int64),
    }
    return Snapshot(tensors=tensors, facts=facts.model_dump_json())


def restore(state: LoopState, held: Snapshot) -> None:
    """Bring a loop that has not begun to where a snapshot of the same run was taken."""
    facts = _Facts.model_validate_json(held.facts)
    with torch.no_grad():
        for name, value in _part(PARAMETERS, held.tensors).items():
            state.parameters[name].copy_(value)
    device = next(iter(state.parameters.values())).device
    best = {name: value.to(device) for name, value in _part(BEST, held.tensors).items()}
    state.best = Best(
        epoch=facts.best_epoch, score=facts.best_score, loss=facts.best_loss, parameters=best
    )
    state.stepper.resume(facts.num_steps, _part(MOMENTS, held.tensors))
    state.place = Place(
        epoch=facts.epoch,
        order=cast("list[int]", held.tensors[ORDER].tolist()),
        num_done=facts.num_done,
        total_loss=facts.total_loss,
    )
    state.history[:] = facts.history
    _restore_random_states(state.randomness, _part(RANDOM, held.tensors))


def resume(state: LoopState, checkpoint: Checkpoint | None, report: Report) -> None:
    """Go on from the checkpoint, if there is one that holds something."""
    held = None if checkpoint is None else checkpoint.load()
    if held is not None:
        restore(state, held)
        report.resumed(num_steps=state.stepper.num_steps)


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def _part(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    begin = f"{prefix}."
    return {name.removeprefix(begin): it for name, it in tensors.items() if name.startswith(begin)}


def _random_states(generator: torch.Generator) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state(), "regularizer": generator.get_state()}
    if generator.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(generator.device)
    return states


def _restore_random_states(generator: torch.Generator, states: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    generator.set_state(states["regularizer"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], generator.device)
