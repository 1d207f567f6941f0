"""Checkpoints: where a killed run goes on.

One file a run, and one beside it for its pretraining, named by all that determines the result, so
that the same command finds it and no other does. It is replaced in one step: a process may be
killed at any time, and what is there is the newest whole one.
"""

# torch types some of its functions partly.
# pyright: reportUnknownMemberType=false

import hashlib
import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import cast

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType] - PathLike
from torch import Tensor

from nunatak_model import Backbone, InvalidTensorsError, tensors_from_bytes
from nunatak_training.cache.folder import default_cache_folder
from nunatak_training.data import TaskData
from nunatak_training.errors import AlreadyTrainingError, CacheError
from nunatak_training.recipes import Recipe
from nunatak_training.trunk.store import numerics_of

FORMAT = "3"
"""Rises when a snapshot holds something else, or means it otherwise, within a release."""
FOLDER = "checkpoints"
SUFFIX, LOCK, PARTIAL = ".safetensors", ".lock", ".partial"
FACTS = "facts"
INTERVAL_SECONDS = 15.0
"""What a kill may cost, where the loop asks often enough."""
MAX_SHARE = 0.05
"""Of the time of a run that goes into writing checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that a loop needs to go on as if it had never stopped."""

    tensors: Mapping[str, Tensor]
    facts: str
    """What is no tensor, as JSON."""


class Checkpoint:
    """The file of a run; `held_checkpoint` sees to it that one process uses it."""

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
        """Whether enough time has passed since the last one was written."""
        return self._clock() >= self._due_at

    def load(self) -> Snapshot | None:
        """Return the newest snapshot; None if there is none, or none that can be read."""
        try:
            tensors = tensors_from_bytes(self._path.read_bytes())
            facts = bytes(cast("list[int]", tensors.pop(FACTS).tolist())).decode()
        except (FileNotFoundError, InvalidTensorsError, KeyError):
            return None
        return Snapshot(tensors=tensors, facts=facts)

    def save(self, snapshot: Snapshot) -> None:
        """Put a snapshot in the place of the one before.

        Raises:
            CacheError: it cannot be written.
        """
        begun = self._clock()
        tensors = {name: it.detach().cpu().contiguous() for name, it in snapshot.tensors.items()}
        tensors[FACTS] = torch.tensor(list(snapshot.facts.encode()), dtype=torch.uint8)
        partial = self._path.with_name(self._path.name + PARTIAL)
        try:
            save_file(tensors, partial)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(self._path)
        except (OSError, SafetensorError) as error:
            partial.unlink(missing_ok=True)
            raise CacheError(self._path.parent, str(error)) from error
        now = self._clock()
        self._due_at = now + max(self._interval, (now - begun) / MAX_SHARE)

    def beside(self, part: str) -> "Checkpoint":
        """Return that of a part of the run which stays when the next part has begun."""
        path = self._path.with_name(f"{self._path.stem}.{part}{SUFFIX}")
        return Checkpoint(path, interval=self._interval, clock=self._clock)

    def discard(self) -> None:
        """Remove it and what is beside it: the run is over, and its result is somewhere safe."""
        for path in self._path.parent.glob(f"{self._path.stem}.*"):
            if path.suffix != LOCK:
                path.unlink(missing_ok=True)


@contextmanager
def held_checkpoint(key: str, folder: Path | None = None) -> Generator[Checkpoint]:
    """Give the checkpoint of a run to this process alone.

    Raises:
        AlreadyTrainingError: another process has it.
        CacheError: the folder cannot be written.
    """
    root = (folder or default_cache_folder()) / FOLDER
    lock = FileLock(root / f"{key}{LOCK}")
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout as error:
        raise AlreadyTrainingError(root) from error
    except OSError as error:
        raise CacheError(root, error.strerror or str(error)) from error
    try:
        yield Checkpoint(root / f"{key}{SUFFIX}")
    finally:
        lock.release()


def run_key(tasks: Mapping[str, TaskData], recipe: Recipe, backbone: Backbone) -> str:
    """SHA-256 over all that determines the result of a run, and the names of what it trains."""
    parts = [FORMAT, version("nunatak"), recipe.digest, backbone.digest, numerics_of(backbone)]
    for name, data in tasks.items():
        parts += [name, data.kind, *data.labels, data.train.digest, data.dev.digest]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
