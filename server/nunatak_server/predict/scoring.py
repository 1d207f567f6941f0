"""Scoring: the answers of all tasks to a chunk of inputs, in batches of this process alone.

A server shares its device between callers, so it admits, queues and times rows, and its batches
depend on the moment. A corpus has one caller. `Scorer` therefore runs the mixed forward directly,
on readings in the order of their lengths, up to a budget of tokens for each batch. The batches of a
chunk depend on the chunk alone, so a chunk that is scored again gives the same numbers.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

import torch

from nunatak_contract.enums import OnLong
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.requests import Input, Parameters
from nunatak_model import Backbone, Encoding, Row
from nunatak_registry import Registry
from nunatak_server.engine.backbones import load_serving_backbone
from nunatak_server.engine.compute import BatchCompute, Compute
from nunatak_server.errors import TaskUnhealthyError
from nunatak_server.outputs.outputs import on_long_of, outputs_of, reading_of
from nunatak_server.predict.types import TaskPrediction
from nunatak_server.residency.resident_set import task_memory_budget
from nunatak_server.settings import ServerSettings
from nunatak_server.tokenization import (
    Encodings,
    Reading,
    check_texts,
    encode_alike,
    extent_of,
    find_cut,
    find_misfit,
    texts_to_read,
)
from nunatak_versions import LoadedTask, load_task

InputLogits = list[list[float]]
"""The logits of each encoding of one input, token after token for some heads."""

BATCH_TOKENS: Final = {"cpu": 2048, "cuda": 65_536}
"""Tokens of one batch: of each distinct text once, and of each of its rows with own layers. No CUDA
device has measured its number yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    error: NunatakError
    reference: str | None = None
    """The task that cannot answer; None if no task can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadInputs:
    inputs: Mapping[int, Input]
    """The inputs that every task can read, by position in the chunk."""
    encodings: Mapping[Reading, Mapping[int, Encodings]]
    """The encodings of each input, by position."""
    refusals: Mapping[int, Refusal]
    """The refused inputs, by position in the chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredInputs:
    positions: tuple[int, ...]
    """The positions of the answered inputs in the chunk."""
    answers: tuple[TaskPrediction, ...]
    """The answers of each task, about these inputs."""
    refusals: Mapping[int, Refusal]
    """The inputs without answers, by position in the chunk."""


class Scorer:
    """Answers chunks of inputs by all of its tasks.

    `read` may run on one thread while `score` runs on another.
    """

    def __init__(
        self,
        backbone: Backbone,
        tasks: Mapping[str, LoadedTask],
        *,
        options: Parameters,
        max_text_chars: int,
        batch_tokens: int | None = None,
        compute: Compute | None = None,
    ) -> None:
        """`tasks` are the versions by the references that name them in answers."""
        self._backbone = backbone
        self._tasks = dict(tasks)
        self._options = options
        self._max_text_chars = max_text_chars
        self._batch_tokens = batch_tokens or BATCH_TOKENS[backbone.device.type]
        self._readings = {
            name: reading_of(task.manifest, options) for name, task in self._tasks.items()
        }
        self._compute = compute or BatchCompute(backbone)
        self._is_stopped = False

    def stop(self) -> None:
        """End `score` on another thread after its batch; the scorer answers nothing any more."""
        self._is_stopped = True

    @property
    def numerics(self) -> str:
        """The type of device and the number format, such as `cpu float32`."""
        dtype = str(self._backbone.dtype).removeprefix("torch.")
        return f"{self._backbone.device.type} {dtype}"

    def read(self, inputs: Sequence[Input]) -> ReadInputs:
        places = dict(enumerate(inputs))
        refusals = _found({at: self._find_refusal(it) for at, it in places.items()})
        encodings = self._encode({at: it for at, it in places.items() if at not in refusals})
        refusals |= _found(
            {at: self._find_too_long(encodings, at) for at in places if at not in refusals}
        )
        kept = {at: it for at, it in places.items() if at not in refusals}
        return ReadInputs(inputs=kept, encodings=encodings, refusals=refusals)

    def score(
        self, read: ReadInputs, on_batch: Callable[[float], None] = lambda _: None
    ) -> ScoredInputs:
        """Answer the inputs; `on_batch` gets the scored share of their tokens after each batch."""
        logits = self._logits(read, on_batch)
        refusals = dict(read.refusals)
        for name, found in logits.items():
            for position, rows in found.items():
                if not all(map(math.isfinite, chain.from_iterable(rows))):
                    manifest = self._tasks[name].manifest
                    reason = "gives outputs that are not finite"
                    error = TaskUnhealthyError(manifest.task, manifest.version, reason)
                    refusals.setdefault(position, Refusal(error=error, reference=name))
        kept = tuple(it for it in read.inputs if it not in refusals)
        return ScoredInputs(
            positions=kept,
            answers=tuple(self._answer(name, read, kept, found) for name, found in logits.items()),
            refusals=refusals,
        )

    def _answer(
        self, name: str, read: ReadInputs, kept: Sequence[int], found: Mapping[int, InputLogits]
    ) -> TaskPrediction:
        manifest = self._tasks[name].manifest
        inputs = [read.inputs[it] for it in kept]
        encodings = [read.encodings[self._readings[name]][it] for it in kept]
        logits = list(chain.from_iterable(found[it] for it in kept))
        join = self._backbone.tokenizer.join
        outputs, predicted = outputs_of(
            manifest.head, inputs, encodings, logits, options=self._options, join=join
        )
        extents = tuple(map(extent_of, encodings))
        return TaskPrediction.of(name, manifest, extents, outputs=outputs, predicted=predicted)

    def _find_refusal(self, item: Input) -> Refusal | None:
        try:
            check_texts([item], max_chars=self._max_text_chars)
        except NunatakError as error:
            return Refusal(error=error)
        for name, task in self._tasks.items():
            manifest = task.manifest
            misfit = find_misfit([item], manifest.head.kind, manifest.reads)
            if misfit is not None:
                return Refusal(error=misfit, reference=name)
        return None

    def _find_too_long(
        self, encodings: Mapping[Reading, Mapping[int, Encodings]], position: int
    ) -> Refusal | None:
        for name, task in self._tasks.items():
            if on_long_of(task.manifest, self._options) is OnLong.REFUSE:
                reading = self._readings[name]
                cut = find_cut([encodings[reading][position]], max_length=reading.max_length)
                if cut is not None:
                    return Refusal(error=cut, reference=name)
        return None

    def _encode(self, inputs: Mapping[int, Input]) -> dict[Reading, dict[int, Encodings]]:
        texts = {at: texts_to_read(item) for at, item in inputs.items()}
        placed = [(at, text) for at, of_input in texts.items() for text in of_input]
        found = dict[Reading, dict[int, Encodings]]()
        for reading in dict.fromkeys(self._readings.values()):
            encoded = iter(encode_alike(self._backbone.tokenizer, placed, reading))
            found[reading] = {
                at: tuple(chain.from_iterable(islice(encoded, len(it)))) for at, it in texts.items()
            }
        return found

    def _logits(
        self, read: ReadInputs, on_batch: Callable[[float], None]
    ) -> dict[str, dict[int, InputLogits]]:
        """Return the logits of the encodings of each input, for each task."""
        encodings = {
            name: {at: read.encodings[it][at] for at in read.inputs}
            for name, it in self._readings.items()
        }
        wanted = dict[Encoding, list[str]]()
        for name, of_inputs in encodings.items():
            for encoding in dict.fromkeys(chain.from_iterable(of_inputs.values())):
                wanted.setdefault(encoding, []).append(name)
        found = dict[tuple[Encoding, str], list[float]]()
        num_done, num_tokens = 0, sum(it.num_tokens for it in wanted)
        for batch in self._batches(wanted):
            if self._is_stopped:
                raise CancelledError
            pairs = [(encoding, name) for encoding in batch for name in wanted[encoding]]
            rows = [Row(encoding=it, branch=self._tasks[name].branch) for it, name in pairs]
            found.update(zip(pairs, self._compute(rows), strict=True))
            num_done += sum(it.num_tokens for it in batch)
            on_batch(num_done / num_tokens)
        return {
            name: {at: [found[it, name] for it in own] for at, own in of_inputs.items()}
            for name, of_inputs in encodings.items()
        }

    def _batches(self, wanted: Mapping[Encoding, Sequence[str]]) -> Iterator[list[Encoding]]:
        """Cut the encodings into batches, the longest first."""
        batch, num_tokens = list[Encoding](), 0
        # The order of equal lengths is the order of the chunk.
        for encoding in sorted(wanted, key=lambda it: -it.num_tokens):
            depths = [self._tasks[it].branch.split_depth for it in wanted[encoding]]
            num_own_rows = sum(it != self._backbone.config.num_layers for it in depths)
            added = encoding.num_tokens * (1 + num_own_rows)
            if batch and num_tokens + added > self._batch_tokens:
                yield batch
                batch, num_tokens = [], 0
            batch.append(encoding)
            num_tokens += added
        if batch:
            yield batch


def _found(refusals: Mapping[int, Refusal | None]) -> dict[int, Refusal]:
    return {at: it for at, it in refusals.items() if it is not None}


def open_scorer(
    registry: Registry,
    versions: Mapping[str, TaskManifest],
    *,
    settings: ServerSettings,
    options: Parameters,
) -> Scorer:
    """Load the backbone of the settings and these versions of tasks, with a server's checks."""
    if settings.compute_threads:
        torch.set_num_threads(settings.compute_threads)
    backbone = load_serving_backbone(settings)
    if backbone.ops.banks is not None:
        budget = task_memory_budget(settings.task_memory_bytes, backbone.device)
        backbone.ops.banks.limit(budget)
    tasks = {
        name: load_task(manifest, registry.read_blob(manifest), backbone)
        for name, manifest in versions.items()
    }
    return Scorer(backbone, tasks, options=options, max_text_chars=settings.max_text_chars)
