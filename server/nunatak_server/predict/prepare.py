"""Making rows: from the tasks that a request asks, and their encodings, to what is computed.

Preparation: from the references and inputs of a request to versions and what each reads.
"""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from nunatak_model import Encoding
from nunatak_registry import (
    InvalidNameError,
    OnLong,
    StoreUnavailableError,
    TaskManifest,
    TaskNotFoundError,
    TaskReference,
    Traffic,
)
from nunatak_server.access.keys import TaskList
from nunatak_server.catalog import deny
from nunatak_server.errors import DeadlineExceededError, DeadlineTooShortError, TooManyTokensError
from nunatak_server.failures import KNOWN_ERRORS
from nunatak_server.inputs import find_misfit
from nunatak_server.outputs.outputs import PredictionOptions, on_long_of, reading_of
from nunatak_server.predict.types import AskedTask, PredictionRequest, TaskFailure
from nunatak_server.residency.residency import Residency
from nunatak_server.residency.resident_set import VersionKey, key_of
from nunatak_server.rollouts.choice import Chosen
from nunatak_server.rollouts.rollouts import Rollouts
from nunatak_server.rollouts.shadows import ShadowRun
from nunatak_server.scheduler.admission import Permit
from nunatak_server.scheduler.rows import PlannedRow, ShadowRows, VersionRows, count_tokens
from nunatak_server.telemetry.metrics import Metrics
from nunatak_server.time_limits import within
from nunatak_server.tokenization import (
    Encodings,
    Tokenization,
    extent_of,
    find_cut,
)


class RowMaking:
    """Makes the rows of requests; belongs to the event loop thread."""

    def __init__(self, *, rollouts: Rollouts, num_layers: int) -> None:
        self._rollouts = rollouts
        self._num_layers = num_layers
        self._groups = itertools.count()

    def rows_of(
        self, request: PredictionRequest, asked: Sequence[AskedTask], *, deadline: float
    ) -> list[VersionRows]:
        """Return one row for each encoding of each task, task by task and input by input."""
        # Equal encodings of one request share a trunk row, so they should meet in one batch.
        groups: dict[Encoding, int] = defaultdict(lambda: next(self._groups))
        return [
            VersionRows(
                manifest=each.manifest,
                rows=tuple(
                    self._row(encoding, groups[encoding], each.manifest.split_depth)
                    for encoding in itertools.chain.from_iterable(each.encodings)
                ),
                caller=request.caller,
                priority=request.priority,
                shadow_rows=self._companion(request, each, groups, deadline),
            )
            for each in asked
        ]

    def _companion(
        self,
        request: PredictionRequest,
        asked: AskedTask,
        groups: Mapping[Encoding, int],
        deadline: float,
    ) -> ShadowRows | None:
        if asked.shadow is None:
            return None
        run = ShadowRun(
            answered=asked.manifest,
            shadow=asked.shadow,
            inputs=request.inputs,
            encodings=asked.encodings,
            shadow_encodings=asked.shadow_encodings,
            rows=tuple(
                self._row(encoding, groups[encoding], asked.shadow.split_depth)
                for encoding in itertools.chain.from_iterable(asked.shadow_encodings)
            ),
            deadline=deadline,
        )
        return partial(self._rollouts.shadows.start, run)

    def _row(self, encoding: Encoding, group: int, split_depth: int | None) -> PlannedRow:
        trunk, own = count_tokens(encoding, split_depth, num_layers=self._num_layers)
        return PlannedRow(
            encoding=encoding,
            group=group,
            trunk_tokens=trunk,
            branch_tokens=own,
            trunk_share=(split_depth or 0) / self._num_layers,
        )


# A registry that fails a look-up in another way has found the task.
UNPROVEN_TASK = (TaskNotFoundError, StoreUnavailableError)


class Preparation:
    """Resolves, chooses and tokenizes; belongs to the event loop thread."""

    def __init__(
        self,
        *,
        residency: Residency,
        tokenization: Tokenization,
        rollouts: Rollouts,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._residency = residency
        self._tokenization = tokenization
        self._rollouts = rollouts
        self._metrics = metrics
        self._clock = clock

    def is_known(self, text: str, tasks: TaskList) -> bool:
        """Tell whether a reference can be read without asking the registry."""
        return not isinstance(self._find(text, tasks), TaskReference)

    async def read(
        self, request: PredictionRequest, permit: Permit
    ) -> tuple[list[AskedTask | TaskFailure], float]:
        """Find the version for every reference, and tokenize the inputs for each.

        Returns each task with what it reads, or why it cannot be asked, and how many seconds the
        tokenizer took.

        Raises:
            DeadlineExceededError: the deadline of the request passed first.
            TooManyTokensError: no task that could be asked reads a text so long.
        """
        reading = self._read(request, permit)
        return await within(request.deadline_s, reading, late=DeadlineExceededError)

    async def _read(
        self, request: PredictionRequest, permit: Permit
    ) -> tuple[list[AskedTask | TaskFailure], float]:
        resolved = await self._find_all(request.references, request.tasks)
        found = [
            self._choose(text, item, request, permit) if isinstance(item, Traffic) else item
            for text, item in zip(request.references, resolved, strict=True)
        ]
        readings = {
            key_of(manifest): reading_of(manifest, request.options)
            for item in found
            if isinstance(item, Chosen)
            for manifest in item.manifests
        }
        started = self._clock()
        encodings = await self._tokenization.encode(
            request.inputs, readings=readings.values(), caller=request.caller
        )
        tokenize_s = self._clock() - started
        read = {key: encodings[reading] for key, reading in readings.items()}
        asked = [
            self._asked(text, item, read, request) if isinstance(item, Chosen) else item
            for text, item in zip(request.references, found, strict=True)
        ]
        self._observe_long(asked, request)
        _refuse_if_all_do(asked, found)
        return asked, tokenize_s

    def _choose(
        self, text: str, traffic: Traffic, request: PredictionRequest, permit: Permit
    ) -> Chosen | TaskFailure:
        """Return which version answers, or why none can answer these inputs."""
        # Versions of one alias all have heads of one kind.
        manifest = traffic.manifest
        problem = find_misfit(request.inputs, manifest.head.kind)
        problem = problem or _find_lateness(request, manifest, permit)
        if problem:
            return TaskFailure(reference=text, error=problem, task=manifest.task)
        return self._rollouts.choose(traffic, routing_key=request.routing_key)

    def _asked(
        self,
        text: str,
        chosen: Chosen,
        read: Mapping[VersionKey, list[Encodings]],
        request: PredictionRequest,
    ) -> AskedTask | TaskFailure:
        """Return what a task reads, or that it refuses a text as too long."""
        manifest, shadow = chosen.manifest, chosen.shadow
        encodings = read[key_of(manifest)]
        problem = _find_too_long(manifest, encodings, request.options)
        if problem is not None:
            return TaskFailure(reference=text, error=problem, task=manifest.task)
        if shadow is not None and _find_too_long(shadow, read[key_of(shadow)], request.options):
            # It would answer nothing that could be compared.
            self._rollouts.shadows.drop(manifest, shadow, num_inputs=len(request.inputs))
            shadow = None
        return AskedTask(
            manifest=manifest,
            encodings=encodings,
            extents=tuple(map(extent_of, encodings)),
            arm=chosen.arm,
            shadow=shadow,
            shadow_encodings=() if shadow is None else read[key_of(shadow)],
        )

    def _observe_long(
        self, asked: Sequence[AskedTask | TaskFailure], request: PredictionRequest
    ) -> None:
        for item in asked:
            if isinstance(item, AskedTask):
                for extent in item.extents:
                    if extent.is_cut:
                        self._metrics.observe_long_input(item.manifest.task, OnLong.CUT)
                    elif extent.is_windowed:
                        self._metrics.observe_long_input(item.manifest.task, OnLong.WINDOWS)
            elif isinstance(item.error, TooManyTokensError) and item.task is not None:
                self._metrics.observe_long_input(item.task, OnLong.REFUSE)

    async def _find_all(
        self, references: Sequence[str], tasks: TaskList
    ) -> list[Traffic | TaskFailure]:
        found = [self._find(text, tasks) for text in references]
        resolving = [
            self._resolve(text, item, tasks)
            for text, item in zip(references, found, strict=True)
            if isinstance(item, TaskReference)
        ]
        resolved = iter(await asyncio.gather(*resolving) if resolving else ())
        return [next(resolved) if isinstance(item, TaskReference) else item for item in found]

    def _find(self, text: str, tasks: TaskList) -> Traffic | TaskFailure | TaskReference:
        """Return the versions that are meant, or the reference if it must be looked up."""
        try:
            reference = TaskReference.parse(text)
        except InvalidNameError as error:
            return TaskFailure(reference=text, error=error)
        if not tasks.allows(reference.task):
            return reference
        return self._residency.known(reference) or reference

    async def _resolve(
        self, text: str, reference: TaskReference, tasks: TaskList
    ) -> Traffic | TaskFailure:
        try:
            if tasks.allows(reference.task):
                return await self._residency.resolve(reference)
            await deny(reference.task, self._residency.look_up(reference))
        except KNOWN_ERRORS as error:
            task = None if isinstance(error, UNPROVEN_TASK) else reference.task
            return TaskFailure(reference=text, error=error, task=task)


def _find_lateness(
    request: PredictionRequest, manifest: TaskManifest, permit: Permit
) -> DeadlineTooShortError | None:
    """Return why a task cannot answer in time, if what is queued already shows it."""
    wait_s = permit.wait_s(manifest.task)
    if wait_s <= request.deadline_s:
        return None
    return DeadlineTooShortError(deadline_s=request.deadline_s, wait_s=wait_s)


def _find_too_long(
    manifest: TaskManifest, encodings: Sequence[Encodings], options: PredictionOptions
) -> TooManyTokensError | None:
    """Return why a task refuses the inputs, if it refuses long texts and one is too long."""
    if on_long_of(manifest, options) is not OnLong.REFUSE:
        return None
    return find_cut(encodings, max_length=manifest.max_length)


def _refuse_if_all_do(
    asked: Sequence[AskedTask | TaskFailure], found: Sequence[Chosen | TaskFailure]
) -> None:
    """Refuse a request as a whole if every task that could be asked finds a text too long."""
    errors = [
        item.error
        for item, chosen in zip(asked, found, strict=True)
        if isinstance(chosen, Chosen) and isinstance(item, TaskFailure)
    ]
    if errors and not any(isinstance(item, AskedTask) for item in asked):
        raise errors[0]
