"""Trunk states on disk, mapped to memory: shared by runs, processes and tasks on the same texts.

An entry appears whole, by renaming a folder, or not at all; so a process may be killed at any
time. Two that want the same entry wait for each other, and the second finds it made. An entry that
is dropped while somebody reads it stays readable until they are done.
"""

# torch types some of its functions partly.
# pyright: reportUnknownMemberType=false

import os
import shutil
import zlib
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

import torch
from filelock import FileLock
from jaxtyping import Float
from torch import Tensor

from nunatak_model import Backbone, Encoding, TrunkStates
from nunatak_training.cache.folder import default_cache_folder
from nunatak_training.errors import CacheError
from nunatak_training.trunk.entries import (
    ENTRY,
    LOCK,
    STATES,
    TrunkEntry,
    drop_entry,
    is_whole,
    make_room,
    new_partial,
    read_entry,
    sweep_unusable,
)
from nunatak_training.trunk.inputs import InputSet
from nunatak_training.trunk.memory import MemoryTrunkStore
from nunatak_training.trunk.states import Progress, SetStates, compute_states
from nunatak_training.trunk.store import numerics_of, states_key

MAX_DISK_BYTES = 32 * 1024**3
FOLDER = "trunk"


class DiskTrunkStore:
    """Holds the sets read last in a folder, as many as a budget of bytes allows.

    A set that alone is above the budget goes to memory, under the rules there.
    """

    def __init__(self, folder: Path | None = None, *, max_bytes: int = MAX_DISK_BYTES) -> None:
        self._root = (folder or default_cache_folder()) / FOLDER
        self._max_bytes = max_bytes
        self._memory = MemoryTrunkStore()

    def states(
        self,
        backbone: Backbone,
        encodings: Iterable[Encoding],
        *,
        depth: int,
        progress: Progress,
    ) -> TrunkStates:
        """Return the states of all encodings at a depth of at least 1.

        Raises:
            CacheError: the folder cannot be written.
        """
        inputs = InputSet.of(encodings)
        row_bytes = backbone.config.hidden_width * backbone.dtype.itemsize
        if inputs.num_tokens * row_bytes > self._max_bytes:
            return self._memory.states(backbone, inputs.encodings, depth=depth, progress=progress)
        folder = self._folder(backbone, inputs, depth)
        with _cache_errors(self._root):
            found = _open(folder, backbone, inputs, depth)
            return found or self._made(folder, backbone, inputs, depth, progress)

    def _made(
        self, folder: Path, backbone: Backbone, inputs: InputSet, depth: int, progress: Progress
    ) -> SetStates:
        self._root.mkdir(parents=True, exist_ok=True)
        sweep_unusable(self._root)
        with FileLock(folder.with_name(folder.name + LOCK)):
            # Another process may have made it while this one waited.
            found = _open(folder, backbone, inputs, depth)
            if found is not None:
                return found
            num_bytes = inputs.num_tokens * backbone.config.hidden_width * backbone.dtype.itemsize
            make_room(self._root, budget=self._max_bytes - num_bytes)
            partial = new_partial(folder)
            try:
                packed = self._write(partial, backbone, inputs, depth, progress)
                drop_entry(folder)  # what is there, if anything, was found broken
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        return SetStates(backbone, inputs, depth, packed)

    def _write(
        self, folder: Path, backbone: Backbone, inputs: InputSet, depth: int, progress: Progress
    ) -> Float[Tensor, "tokens width"]:
        below = self._below(backbone, inputs, depth)
        parts = compute_states(backbone, inputs, depth, below=below, progress=progress)
        crc32, num_bytes = _write_states(folder / STATES, parts)
        entry = TrunkEntry(
            backbone=backbone.name,
            backbone_digest=backbone.digest,
            numerics=numerics_of(backbone),
            depth=depth,
            num_inputs=len(inputs.encodings),
            num_tokens=inputs.num_tokens,
            width=backbone.config.hidden_width,
            num_bytes=num_bytes,
            crc32=crc32,
        )
        _write_durably(folder / ENTRY, entry.model_dump_json(indent=2).encode())
        return _mapped(folder / STATES, (entry.num_tokens, entry.width), backbone.dtype)

    def _below(self, backbone: Backbone, inputs: InputSet, depth: int) -> SetStates | None:
        for lower in range(depth - 1, 0, -1):
            found = _open(self._folder(backbone, inputs, lower), backbone, inputs, lower)
            if found is not None:
                return found
        return None

    def _folder(self, backbone: Backbone, inputs: InputSet, depth: int) -> Path:
        return self._root / states_key(backbone, inputs, depth)


def _open(folder: Path, backbone: Backbone, inputs: InputSet, depth: int) -> SetStates | None:
    stored = read_entry(folder)
    shape = (inputs.num_tokens, backbone.config.hidden_width)
    num_bytes = shape[0] * shape[1] * backbone.dtype.itemsize
    if stored is None or stored.entry.num_bytes != num_bytes or not is_whole(stored):
        return None
    try:
        packed = _mapped(folder / STATES, shape, backbone.dtype)
        os.utime(folder / ENTRY)
    except FileNotFoundError:  # dropped by another process since it was read
        return None
    return SetStates(backbone, inputs, depth, packed)


def _mapped(
    place: Path, shape: tuple[int, int], dtype: torch.dtype
) -> Float[Tensor, "tokens width"]:
    try:
        # A private mapping: whatever is done to the tensor, the file stays as it is.
        flat = torch.from_file(str(place), shared=False, size=shape[0] * shape[1], dtype=dtype)
    except RuntimeError as error:
        raise FileNotFoundError(place) from error
    return flat.view(shape)


def _write_states(place: Path, parts: Iterable[Tensor]) -> tuple[int, int]:
    """Write the parts one after another; return their checksum and size."""
    crc, size = 0, 0
    with place.open("wb") as file:
        for part in parts:
            data = part.contiguous().view(torch.uint8).numpy().data
            crc = zlib.crc32(data, crc)
            size += file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return crc, size


def _write_durably(place: Path, data: bytes) -> None:
    with place.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _cache_errors(root: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise CacheError(root, error.strerror or str(error)) from error
