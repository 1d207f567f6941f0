"""Trunk states of whole data sets: computed once, kept in memory or on disk, read by every run.

`compute_states` makes the states of an `InputSet`. `MemoryTrunkStore` and `DiskTrunkStore` keep
them within a budget of bytes.

Axes: tokens = packed tokens of a set, width = hidden width.
"""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from cachetools import LRUCache
from filelock import FileLock
from jaxtyping import Float
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nunatak_model import Backbone, Encoding, TrunkCache, TrunkSource, TrunkStates, run_trunk
from nunatak_training import cache

CHUNK_TOKENS = 4096
"""Tokens of one pass through the trunk: enough for a busy CPU, and few enough for memory."""
Progress = Callable[[int, int], None]
"""Receives the number of finished inputs, and of all inputs."""
FORMAT = "1"
"""Increased when the order of a set, or the result of its forward, changes within a release."""
MAX_MEMORY_BYTES = 2 * 1024**3
MAX_DISK_BYTES = 32 * 1024**3
STATES = "states"
FORMATS = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


@dataclass(frozen=True, kw_only=True)
class InputSet:
    """Distinct inputs, from the shortest to the longest, at equal length by their tokens.

    The order of the inputs, and so their division into chunks, does not depend on the order of the
    examples. Other rows in a batch could change the last bit of a row's sums, so the fixed order
    keeps the bits of a set's states.
    """

    encodings: tuple[Encoding, ...]

    @classmethod
    def of(cls, encodings: Iterable[Encoding]) -> "InputSet":
        distinct = dict.fromkeys(encodings)
        ordered = sorted(distinct, key=lambda it: (it.num_tokens, it.token_ids, it.type_ids))
        return cls(encodings=tuple(ordered))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """First packed token of each input, and the number of all tokens."""
        return tuple(accumulate((it.num_tokens for it in self.encodings), initial=0))

    @property
    def num_tokens(self) -> int:
        return self.offsets[-1]

    @cached_property
    def digest(self) -> str:
        content = hashlib.sha256()
        for numbers in (
            [it.num_tokens for it in self.encodings],
            chain.from_iterable(it.token_ids for it in self.encodings),
            chain.from_iterable(it.type_ids for it in self.encodings),
        ):
            content.update(np.fromiter(numbers, dtype="<i8").tobytes())
        return content.hexdigest()

    def chunks(self) -> Iterator[tuple[Encoding, ...]]:
        begin, tokens = 0, 0
        for index, encoding in enumerate(self.encodings):
            if tokens and tokens + encoding.num_tokens > CHUNK_TOKENS:
                yield self.encodings[begin:index]
                begin, tokens = index, 0
            tokens += encoding.num_tokens
        if begin < len(self.encodings):
            yield self.encodings[begin:]


class SetStates:
    """The states of a set, as a source of trunk states for the forward. The states never change.

    The caller must make sure that the states belong to these inputs. A source of another backbone,
    format or device is treated like an unknown input.
    """

    def __init__(
        self,
        backbone: Backbone,
        inputs: InputSet,
        depth: int,
        packed: Float[Tensor, "tokens width"],
    ) -> None:
        self._backbone = backbone
        self._depths = (depth,)
        self._packed = packed
        self._places = {
            (encoding.token_ids, encoding.type_ids): slice(begin, begin + encoding.num_tokens)
            for encoding, begin in zip(inputs.encodings, inputs.offsets, strict=False)
        }

    @property
    def num_bytes(self) -> int:
        return self._packed.nbytes

    def depths(self, source: TrunkSource) -> Collection[int]:
        belongs = (
            source.backbone == self._backbone.digest
            and source.dtype == self._backbone.dtype
            and source.device == self._backbone.device
        )
        return self._depths if belongs and _key(source) in self._places else ()

    def read(self, source: TrunkSource, depth: int) -> Float[Tensor, "tokens width"]:
        return self._packed[self._places[_key(source)]].to(self._backbone.device)

    def offer(self, source: TrunkSource, depth: int, state: Float[Tensor, "tokens width"]) -> None:
        """Do nothing, because the set is complete."""


def compute_states(
    backbone: Backbone,
    inputs: InputSet,
    depth: int,
    *,
    below: TrunkStates | None,
    progress: Progress,
) -> Iterator[Float[Tensor, "_ width"]]:
    """Yield the states of one chunk after another, on the CPU, from those `below` if any."""
    done, num_inputs = 0, len(inputs.encodings)
    progress(done, num_inputs)
    for chunk in inputs.chunks():
        with torch.no_grad():
            hidden = run_trunk(backbone, chunk, depth=depth, trunk=below).hidden
            packed = torch.cat([hidden[encoding] for encoding in chunk]).cpu()
        done += len(chunk)
        progress(done, num_inputs)
        yield packed


def _key(source: TrunkSource) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return source.encoding.token_ids, source.encoding.type_ids


class TrunkStore(Protocol):
    """Gives the trunk states of a data set. Missing states are computed."""

    def states(
        self, backbone: Backbone, encodings: Iterable[Encoding], *, depth: int, progress: Progress
    ) -> TrunkStates: ...


class JoinedStates:
    """Several sets as one. The first set with an input gives its state."""

    def __init__(self, parts: Sequence[TrunkStates]) -> None:
        self._parts = tuple(parts)

    def depths(self, source: TrunkSource) -> Collection[int]:
        return next(filter(None, (part.depths(source) for part in self._parts)), ())

    def read(self, source: TrunkSource, depth: int) -> Float[Tensor, "tokens width"]:
        for part in self._parts:
            if depth in part.depths(source):
                return part.read(source, depth)
        raise KeyError(source, depth)

    def offer(self, source: TrunkSource, depth: int, state: Float[Tensor, "tokens width"]) -> None:
        """Offer to all sets, unless autocast rounded the products of the state."""
        if torch.is_autocast_enabled(state.device.type):
            return
        for part in self._parts:
            part.offer(source, depth, state)


def states_key(backbone: Backbone, inputs: InputSet, depth: int) -> str:
    """SHA-256 over everything that the bits of a set's states depend on."""
    numerics = machine_of(backbone)
    if backbone.device.type != "cuda":
        numerics += f", {torch.get_num_threads()} threads"
    parts = (FORMAT, backbone.digest, numerics, inputs.digest, str(depth))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def machine_of(backbone: Backbone) -> str:
    """Everything except weights, inputs and threads that decides the bits of a trunk state."""
    device = backbone.device
    is_cuda = device.type == "cuda"
    capability = torch.backends.cpu.get_cpu_capability
    name = torch.cuda.get_device_name(device) if is_cuda else capability()
    layout = "packed" if backbone.is_packed else "plain"
    return (
        f"nunatak {version('nunatak')}, torch {torch.__version__}, {device.type} {name}, "
        f"{backbone.dtype}, {layout}"
    )


class MemoryTrunkStore:
    """Holds the most recently read sets, within a budget of bytes.

    If one set alone exceeds the budget, the store holds the most recently read states of batches.
    Such states may differ in the last bit from the states of a whole pass.
    """

    def __init__(self, *, max_bytes: int = MAX_MEMORY_BYTES) -> None:
        self._max_bytes = max_bytes
        self._sets = LRUCache[str, SetStates](max_bytes, lambda it: it.num_bytes)

    def states(
        self, backbone: Backbone, encodings: Iterable[Encoding], *, depth: int, progress: Progress
    ) -> TrunkStates:
        inputs = InputSet.of(encodings)
        shape = (inputs.num_tokens, backbone.config.hidden_width)
        if shape[0] * shape[1] * backbone.dtype.itemsize > self._max_bytes:
            return TrunkCache(max_bytes=self._max_bytes)
        key = states_key(backbone, inputs, depth)
        if key not in self._sets:
            packed = torch.empty(shape, dtype=backbone.dtype)
            keys = (states_key(backbone, inputs, lower) for lower in range(depth - 1, 0, -1))
            below = next((self._sets[it] for it in keys if it in self._sets), None)
            begin = 0
            for part in compute_states(backbone, inputs, depth, below=below, progress=progress):
                packed[begin : begin + len(part)] = part
                begin += len(part)
            self._sets[key] = SetStates(backbone, inputs, depth, packed)
        return self._sets[key]


class DiskTrunkStore:
    """Holds the most recently read sets in a folder, within a budget of bytes.

    Runs, processes and tasks on the same texts share the files, which are mapped to memory. A file
    appears whole or not at all. Of two processes that need the same set, the second waits and then
    reads the file. A file is read only if its metadata names this set and its digest is right;
    otherwise it is computed again. A set that alone exceeds the budget stays in memory, under the
    rules of `MemoryTrunkStore`.
    """

    def __init__(self, folder: Path | None = None, *, max_bytes: int = MAX_DISK_BYTES) -> None:
        self._root = (folder or cache.default_cache_folder()) / cache.STATES_FOLDER
        self._max_bytes = max_bytes
        self._memory = MemoryTrunkStore()

    def states(
        self, backbone: Backbone, encodings: Iterable[Encoding], *, depth: int, progress: Progress
    ) -> TrunkStates:
        inputs = InputSet.of(encodings)
        if _num_bytes(backbone, inputs) > self._max_bytes:
            return self._memory.states(backbone, inputs.encodings, depth=depth, progress=progress)
        with cache.usable(self._root):
            found = self._found(backbone, inputs, depth)
            return found or self._made(backbone, inputs, depth, progress)

    def _found(self, backbone: Backbone, inputs: InputSet, depth: int) -> SetStates | None:
        key = states_key(backbone, inputs, depth)
        path = self._root / f"{key}{cache.SUFFIX}"
        try:
            metadata, packed = _mapped(path)
            facts = cache.StatesFacts.model_validate(metadata)
            os.utime(path)
        except (FileNotFoundError, SafetensorError, ValidationError):
            return None
        expected = ((inputs.num_tokens, backbone.config.hidden_width), backbone.dtype)
        is_whole = facts.key == key and (tuple(packed.shape), packed.dtype) == expected
        if not is_whole or hashlib.sha256(_bytes_of(packed)).hexdigest() != facts.digest:
            return None
        return SetStates(backbone, inputs, depth, packed)

    def _made(
        self, backbone: Backbone, inputs: InputSet, depth: int, progress: Progress
    ) -> SetStates:
        self._root.mkdir(parents=True, exist_ok=True)
        cache.sweep_unusable(self._root)
        key = states_key(backbone, inputs, depth)
        path = self._root / f"{key}{cache.SUFFIX}"
        with FileLock(path.with_name(key + cache.LOCK)):
            # Another process may have made the file while this process waited.
            found = self._found(backbone, inputs, depth)
            if found is not None:
                return found
            facts = cache.StatesFacts(
                key=key,
                digest="0" * 64,
                backbone=backbone.name,
                depth=depth,
                num_inputs=len(inputs.encodings),
                num_tokens=inputs.num_tokens,
                num_bytes=_num_bytes(backbone, inputs),
            )
            cache.make_room(self._root, budget=self._max_bytes - facts.num_bytes)
            lower = (self._found(backbone, inputs, it) for it in range(depth - 1, 0, -1))
            below = next(filter(None, lower), None)
            parts = compute_states(backbone, inputs, depth, below=below, progress=progress)
            with cache.replacing(path) as partial:
                _write_states(partial, facts, backbone, parts)
            _, packed = _mapped(path)
            return SetStates(backbone, inputs, depth, packed)


def _mapped(path: Path) -> tuple[object, Float[Tensor, "tokens width"]]:
    """The metadata and the states of a file; changes to the states stay in memory."""
    # safetensors does not type its file.
    with safe_open(path, framework="pt") as file:
        opened = cast("Any", file)
        return opened.metadata(), opened.get_tensor(STATES)


def _write_states(
    path: Path, facts: cache.StatesFacts, backbone: Backbone, parts: Iterable[Tensor]
) -> None:
    """Part by part, because the states of a set may exceed the memory."""
    with path.open("wb") as file:
        file.write(_header(facts, backbone))
        digest = hashlib.sha256()
        for part in parts:
            data = _bytes_of(part)
            digest.update(data)
            file.write(data)
        # The header keeps its length, because all digests have one length.
        file.seek(0)
        file.write(_header(facts.model_copy(update={"digest": digest.hexdigest()}), backbone))


def _header(facts: cache.StatesFacts, backbone: Backbone) -> bytes:
    metadata = {name: str(value) for name, value in facts.model_dump().items()}
    tensor = {
        "dtype": FORMATS[backbone.dtype],
        "shape": [facts.num_tokens, backbone.config.hidden_width],
        "data_offsets": [0, facts.num_bytes],
    }
    header = json.dumps({"__metadata__": metadata, STATES: tensor}).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.contiguous().view(torch.uint8).numpy().data


def _num_bytes(backbone: Backbone, inputs: InputSet) -> int:
    return inputs.num_tokens * backbone.config.hidden_width * backbone.dtype.itemsize
