"""Preparation: from the references and inputs of a request to versions and what each reads."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from nunatak_registry import (
    InvalidNameError,
    StoreUnavailableError,
    TaskManifest,
    TaskNotFoundError,
    TaskReference,
    Traffic,
)
from nunatak_server.access.callers import TaskList
from nunatak_server.admission.admission import Permit
from nunatak_server.catalog.visible import deny
from nunatak_server.errors import DeadlineExceededError, DeadlineTooShortError
from nunatak_server.errors.known import KNOWN_ERRORS
from nunatak_server.postprocess.outputs import reading_of
from nunatak_server.residency.keys import VersionKey, key_of
from nunatak_server.residency.residency import Residency
from nunatak_server.service.prediction import AskedTask, PredictionRequest, TaskFailure
from nunatak_server.time_limits import within
from nunatak_server.tokenization.inputs import find_misfit
from nunatak_server.tokenization.tokenization import Encodings, Tokenization
from nunatak_server.traffic.choice import Chosen
from nunatak_server.traffic.control import TrafficControl

# A registry that fails a look-up in another way has found the task.
UNPROVEN_TASK = (TaskNotFoundError, StoreUnavailableError)


class Preparation:
    """Resolves, chooses and tokenizes; belongs to the event loop thread."""

    def __init__(
        self,
        *,
        residency: Residency,
        tokenization: Tokenization,
        traffic: TrafficControl,
        clock: Callable[[], float],
    ) -> None:
        self._residency = residency
        self._tokenization = tokenization
        self._traffic = traffic
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
        return [
            _asked(item, read) if isinstance(item, Chosen) else item for item in found
        ], tokenize_s

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
        return self._traffic.choose(traffic, routing_key=request.routing_key)

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


def _asked(chosen: Chosen, read: Mapping[VersionKey, list[Encodings]]) -> AskedTask:
    shadow = chosen.shadow
    return AskedTask(
        manifest=chosen.manifest,
        encodings=read[key_of(chosen.manifest)],
        arm=chosen.arm,
        shadow=shadow,
        shadow_encodings=() if shadow is None else read[key_of(shadow)],
    )
