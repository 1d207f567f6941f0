"""Checkpoints: the file from which a killed run continues, and the loop state in it.

Each run has one file, and its pretraining has another. The name of the file is a digest over
everything that determines the result, so only the same command finds the file. The file is replaced
in one step, so a killed process always leaves a whole checkpoint.

The state is everything that the next step depends on: the parameters, the optimizer's moments, the
position in the epoch and the order of its examples, three random states, and the best epoch so far.
Values that follow from the recipe are not stored. Rates follow from the number of steps, and masks
of an epoch follow from the regularizer's seed.
"""

import hashlib
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import cast

import torch
from filelock import FileLock, Timeout
from pydantic import BaseModel
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nunatak_contract.enums import Pooling
from nunatak_contract.errors import NunatakError
from nunatak_model import (
    Backbone,
    InvalidTensorsError,
    default_head,
    tensors_from_bytes,
    tensors_to_bytes,
)
from nunatak_training.cache import CHECKPOINTS_FOLDER, LOCK, SUFFIX, replacing, usable
from nunatak_training.data import TaskData
from nunatak_training.errors import TrainingDivergedError
from nunatak_training.kinds import TaskKind
from nunatak_training.loop.step import Best, Stepper
from nunatak_training.recipes import Recipe
from nunatak_training.report import EpochResult
from nunatak_training.trunk import machine_of

FORMAT = "5"
"""Number of the snapshots' format, increased with every change within a release."""
FACTS = "facts"
THREADS = "threads"
INTERVAL_SECONDS = 15.0
"""Time between two checkpoints, the most that a kill can cost."""
MAX_SHARE = 0.05
"""Largest share of a run's time for writing checkpoints."""
PARAMETERS, BEST, MOMENTS, RANDOM = "parameters", "best", "moments", "random"
ORDER = "order"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """Everything that a loop needs to continue as if it had never stopped."""

    tensors: Mapping[str, Tensor]
    facts: str
    """The facts that are not tensors, as JSON."""


class SavedRun:
    """The file of a run. `held_checkpoint` makes sure that only one process uses the file."""

    def __init__(
        self,
        path: Path,
        *,
        interval: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._interval = interval
        self._clock = clock
        self._due_at = clock() + interval

    @property
    def is_due(self) -> bool:
        return self._clock() >= self._due_at

    def load(self) -> SavedState | None:
        """The newest snapshot that can be read."""
        try:
            with usable(self._path.parent):
                stored = self._path.read_bytes() if self._path.exists() else b""
            tensors = tensors_from_bytes(stored)
            facts = bytes(cast("list[int]", tensors.pop(FACTS).tolist())).decode()
        except (InvalidTensorsError, KeyError):
            return None
        return SavedState(tensors=tensors, facts=facts)

    @property
    def num_threads(self) -> int | None:
        """At the start of the run; None without a checkpoint."""
        for path in sorted(self._path.parent.glob(f"{self._path.stem}*{SUFFIX}")):
            try:
                with safe_open(path, framework="np") as file:
                    facts = cast("dict[str, str]", file.metadata() or {})
                return int(facts[THREADS])
            except (OSError, SafetensorError, KeyError, ValueError):
                continue
        return None

    def save(self, snapshot: SavedState) -> None:
        begun = self._clock()
        tensors = {name: it.detach().cpu().contiguous() for name, it in snapshot.tensors.items()}
        tensors[FACTS] = torch.tensor(list(snapshot.facts.encode()), dtype=torch.uint8)
        with usable(self._path.parent), replacing(self._path) as partial:
            save_file(tensors, partial, metadata={THREADS: str(torch.get_num_threads())})
        now = self._clock()
        self._due_at = now + max(self._interval, (now - begun) / MAX_SHARE)

    def part(self, part: str) -> "SavedRun":
        """The checkpoint of a part of the run, which stays when the next part begins."""
        path = self._path.with_name(f"{self._path.stem}.{part}{SUFFIX}")
        return SavedRun(path, interval=self._interval, clock=self._clock)

    def discard(self) -> None:
        """Remove the files of the run and of its parts, when its result is safe."""
        for path in self._path.parent.glob(f"{self._path.stem}.*"):
            if path.suffix != LOCK:
                path.unlink(missing_ok=True)


@contextmanager
def held_files(key: str, folder: Path) -> Generator[Path]:
    """Yield the folder of checkpoints; its files of this key are this process's alone."""
    root = folder / CHECKPOINTS_FOLDER
    lock = FileLock(root / f"{key}{LOCK}")
    with usable(root):
        root.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout as error:
            raise NunatakError("already_training", folder=root) from error
    try:
        yield root
    finally:
        lock.release()


@contextmanager
def held_checkpoint(key: str, folder: Path) -> Generator[SavedRun]:
    """Yield the checkpoint of a run, for this process alone.

    Within the block, torch computes with the run's first number of threads, because another number
    may give other bits.
    """
    with held_files(key, folder) as root:
        checkpoint, threads = SavedRun(root / f"{key}{SUFFIX}"), torch.get_num_threads()
        try:
            torch.set_num_threads(checkpoint.num_threads or threads)
            yield checkpoint
        finally:
            torch.set_num_threads(threads)


@contextmanager
def run_checkpoint(
    tasks: Mapping[str, TaskData], recipe: Recipe, backbone: Backbone, folder: Path | None
) -> Generator[SavedRun | None]:
    """Yield the checkpoint of a run, which ends with the block; None without a folder.

    A failed run keeps its checkpoint, unless it diverged: it would diverge again from there.
    """
    if folder is None:
        yield None
        return
    with held_checkpoint(run_key(tasks, recipe, backbone), folder) as checkpoint:
        try:
            yield checkpoint
        except TrainingDivergedError:
            checkpoint.discard()
            raise
        checkpoint.discard()


def run_key(tasks: Mapping[str, TaskData], recipe: Recipe, backbone: Backbone) -> str:
    """SHA-256 over everything that determines a run's result, and the names of its parameters.

    The number of threads, which may follow from the load, is read from the checkpoint.
    """
    parts = [FORMAT, version("nunatak"), recipe.digest, backbone.digest, machine_of(backbone)]
    for name, data in tasks.items():
        parts += [name, data.kind, *data.labels, data.train.digest, data.dev.digest]
        # The teacher's thresholds choose the best epoch.
        parts += [] if data.teacher is None else [data.teacher.digest]
        parts += head_start(data.kind, recipe, backbone)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def head_start(kind: TaskKind, recipe: Recipe, backbone: Backbone) -> list[str]:
    """What a new head takes from the backbone beyond the backbone's digest."""
    usual = default_head(backbone, kind=kind.head, num_labels=kind.head.fixed_outputs or 1)
    pooling = usual.pooling and (recipe.pooling or usual.pooling)
    is_dense = usual.dense if pooling is None or recipe.dense is None else recipe.dense
    if pooling in {None, Pooling.MEAN} and not is_dense:
        return []
    block = {
        f"{name}.{part}": tensor
        for name, it in (("dense", backbone.pooler), ("norm", backbone.pooler_norm))
        if it is not None
        for part, tensor in (("weight", it.weight), ("bias", it.bias))
        if tensor is not None
    }
    digest = hashlib.sha256(tensors_to_bytes(block)).hexdigest()
    return [str(pooling), str(backbone.config.padding_id), digest]


@dataclass(slots=True, kw_only=True)
class Place:
    epoch: int = 1
    order: list[int] = field(default_factory=list[int])
    """Of this epoch's examples; empty before the first step, and if the seed gives the order."""
    num_done: int = 0
    """Batches of this epoch."""
    total_loss: float = 0.0
    """Weighted sum over the done batches."""


@dataclass(slots=True, kw_only=True)
class LoopState:
    """The state that changes while a loop runs; a new loop has done nothing."""

    parameters: Mapping[str, Tensor]
    stepper: Stepper
    randomness: torch.Generator
    """Of the regularizer."""
    best: Best = field(default_factory=Best)
    place: Place = field(default_factory=Place)
    history: list[EpochResult] = field(default_factory=list[EpochResult])


class _Facts(BaseModel, frozen=True, extra="forbid", ser_json_inf_nan="constants"):
    num_steps: int
    epoch: int
    num_done: int
    total_loss: float
    best: EpochResult | None
    history: tuple[EpochResult, ...]


def snapshot(state: LoopState) -> SavedState:
    """The present state. The tensors are not copies."""
    place = state.place
    facts = _Facts(
        num_steps=state.stepper.num_steps,
        epoch=place.epoch,
        num_done=place.num_done,
        total_loss=place.total_loss,
        best=state.best.result,
        history=tuple(state.history),
    )
    generator = state.randomness
    random = {"cpu": torch.get_rng_state(), "regularizer": generator.get_state()}
    if generator.device.type == "cuda":
        random["cuda"] = torch.cuda.get_rng_state(generator.device)
    tensors = {
        **_named(PARAMETERS, state.parameters),
        **_named(BEST, state.best.parameters),
        **_named(MOMENTS, state.stepper.moments()),
        **_named(RANDOM, random),
        ORDER: torch.tensor(place.order, dtype=torch.int64),
    }
    return SavedState(tensors=tensors, facts=facts.model_dump_json())


def restore(state: LoopState, held: SavedState) -> None:
    facts = _Facts.model_validate_json(held.facts)
    with torch.no_grad():
        for name, value in _part(PARAMETERS, held.tensors).items():
            state.parameters[name].copy_(value)
    device = next(iter(state.parameters.values())).device
    best = {name: value.to(device) for name, value in _part(BEST, held.tensors).items()}
    state.best = Best(result=facts.best, parameters=best)
    state.stepper.resume(facts.num_steps, _part(MOMENTS, held.tensors))
    state.place = Place(
        epoch=facts.epoch,
        order=cast("list[int]", held.tensors[ORDER].tolist()),
        num_done=facts.num_done,
        total_loss=facts.total_loss,
    )
    state.history[:] = facts.history
    random = _part(RANDOM, held.tensors)
    torch.set_rng_state(random["cpu"])
    state.randomness.set_state(random["regularizer"])
    if "cuda" in random:
        torch.cuda.set_rng_state(random["cuda"], state.randomness.device)


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def _part(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    begin = f"{prefix}."
    return {name.removeprefix(begin): it for name, it in tensors.items() if name.startswith(begin)}
