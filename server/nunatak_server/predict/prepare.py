"""Preparation: references and inputs of a request become versions, readings and rows.

resolve -> choose a version -> tokenize -> plan rows
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count

from nunatak_contract.enums import OnLong
from nunatak_contract.errors import InvalidNameError, NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_model import Encoding
from nunatak_registry import StoreUnavailableError, TaskNotFoundError, Traffic
from nunatak_server.access.keys import TaskList
from nunatak_server.backbones import Backbones
from nunatak_server.errors import DeadlineExceededError, DeadlineTooShortError, TooManyTokensError
from nunatak_server.facts import KnownFacts
from nunatak_server.failures import within
from nunatak_server.outputs.entities import Join
from nunatak_server.outputs.outputs import on_long_of, reading_of
from nunatak_server.predict.types import (
    BACKBONE,
    AskedBackbone,
    AskedTask,
    EmbeddingRequest,
    PredictionRequest,
    TaskFailure,
)
from nunatak_server.residency.resident_set import VersionKey, key_of
from nunatak_server.rollouts.choice import Chosen
from nunatak_server.rollouts.rollouts import Rollouts
from nunatak_server.rollouts.shadows import ShadowRun
from nunatak_server.scheduler.admission import Permit
from nunatak_server.scheduler.rows import (
    ANONYMOUS,
    MIN_COST,
    Priority,
    RowBackbone,
    RowSpec,
    row_spec,
)
from nunatak_server.telemetry.metrics import Metrics
from nunatak_server.tokenization import (
    Encodings,
    Extent,
    Reading,
    Tokenization,
    extent_of,
    find_cut,
    find_misfit,
)
from nunatak_server.turns import Pace

# After any other error of a look-up, the task exists.
UNPROVEN_TASK = (TaskNotFoundError, StoreUnavailableError)


_RowsKey = tuple[Reading, int | None, str, Priority]
Name = Callable[[str, str], None]
"""Receives each reference whose task exists, and the name of the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadInputs:
    """The inputs of one request, in the readings of its versions."""

    request: PredictionRequest
    deadline: float
    pace: Pace
    readings: Mapping[VersionKey, Reading]
    encodings: Mapping[Reading, list[Encodings]]
    """The encodings of each input."""
    extents: Mapping[Reading, tuple[Extent, ...]]
    groups: defaultdict[tuple[str, Encoding], int]
    """Equal encodings for one backbone share a trunk row, so they should meet in one batch."""
    backbones: Mapping[str, RowBackbone]
    """The backbones of the server, by digest."""
    joins: Mapping[str, Join]
    """How each backbone joins tokens to running text."""
    rows: dict[_RowsKey, tuple[RowSpec, ...]] = field(
        default_factory=dict[_RowsKey, tuple[RowSpec, ...]]
    )
    """Tasks that read alike and split at one depth have equal rows."""

    async def ask(self, reference: str, chosen: Chosen) -> AskedTask:
        manifest, shadow, request = chosen.manifest, chosen.shadow, self.request
        return AskedTask(
            reference=reference,
            manifest=manifest,
            encodings=self.encodings_of(manifest),
            join=self.joins[manifest.backbone.digest],
            extents=self.extents_of(manifest),
            rows=await self._rows(
                manifest, caller=request.handling.caller, priority=request.handling.priority
            ),
            arm=chosen.arm,
            shadow=None if shadow is None else await self._shadow_run(manifest, shadow),
        )

    def encodings_of(self, manifest: TaskManifest) -> list[Encodings]:
        return self.encodings[self.readings[key_of(manifest)]]

    def extents_of(self, manifest: TaskManifest) -> tuple[Extent, ...]:
        return self.extents[self.readings[key_of(manifest)]]

    def find_too_long(self, manifest: TaskManifest) -> TooManyTokensError | None:
        if on_long_of(manifest, self.request.options) is not OnLong.REFUSE:
            return None
        return find_cut(self.encodings_of(manifest), max_length=manifest.max_length)

    async def _shadow_run(self, answered: TaskManifest, shadow: TaskManifest) -> ShadowRun:
        return ShadowRun(
            answered=answered,
            shadow=shadow,
            inputs=self.request.inputs,
            encodings=self.encodings_of(answered),
            shadow_encodings=self.encodings_of(shadow),
            join=self.joins[answered.backbone.digest],
            rows=await self._rows(shadow, caller=ANONYMOUS, priority=Priority.NORMAL),
            deadline=self.deadline,
        )

    async def _rows(
        self, manifest: TaskManifest, *, caller: str, priority: Priority
    ) -> tuple[RowSpec, ...]:
        key = self.readings[key_of(manifest)], manifest.split_depth, caller, priority
        if key not in self.rows:
            row_of = partial(self._row, manifest=manifest, caller=caller, priority=priority)
            encodings = chain.from_iterable(self.encodings_of(manifest))
            self.rows[key] = tuple(await self.pace.map(row_of, encodings))
        return self.rows[key]

    def _row(
        self, encoding: Encoding, *, manifest: TaskManifest, caller: str, priority: Priority
    ) -> RowSpec:
        backbone = self.backbones[manifest.backbone.digest]
        return row_spec(
            encoding,
            manifest.split_depth,
            backbone=backbone,
            group=self.groups[backbone.digest, encoding],
            caller=caller,
            priority=priority,
        )


class Preprocessor:
    """Resolves, chooses, tokenizes and plans rows; only the event loop thread may use it."""

    def __init__(
        self,
        *,
        facts: KnownFacts,
        tokenization: Tokenization,
        rollouts: Rollouts,
        metrics: Metrics,
        backbones: Backbones,
        clock: Callable[[], float],
    ) -> None:
        self._facts = facts
        self._tokenization = tokenization
        self._rollouts = rollouts
        self._metrics = metrics
        self._backbones = backbones
        self._row_backbones = backbones.for_rows()
        self._joins = {it.digest: it.tokenizer.join for it in backbones}
        self._clock = clock
        self._groups = count()
        # Negative numbers, unlike the groups of predictions and of the warm-up, because texts of
        # different requests are no siblings.
        self._embedding_groups = count(-2, -1)

    def is_known(self, text: str, tasks: TaskList) -> bool:
        return not isinstance(self._find(text, tasks), TaskReference)

    async def read(
        self, request: PredictionRequest, permit: Permit, *, deadline: float, pace: Pace, name: Name
    ) -> tuple[list[AskedTask | TaskFailure], float]:
        """Find the version for every reference, and plan the rows of the inputs.

        Returns each task with its readings or its failure, and the seconds of the tokenizer. The
        permit counts `MIN_COST` for each row before the row is made.
        """
        reading = self._read(request, permit, deadline, pace, name)
        return await within(request.handling.deadline_s, reading, late=DeadlineExceededError)

    async def read_texts(
        self, request: EmbeddingRequest, permit: Permit
    ) -> tuple[AskedBackbone, float]:
        """Plan the backbone's rows for the texts.

        Returns the backbone with its readings, and the seconds of the tokenizer.
        """
        problem = _find_lateness(request, BACKBONE, permit)
        if problem is not None:
            raise problem
        backbone = self._backbones.with_digest(request.backbone)
        limit = backbone.max_embedding_tokens
        reading = Reading(max_length=limit, stride=None, backbone=backbone.digest)
        encode = self._encode(request, [reading])
        encoded, tokenize_s = await within(
            request.handling.deadline_s, encode, late=DeadlineExceededError
        )
        self._check_lengths(request, encoded[reading], limit=limit)
        # Rows of one group share a turn of the planner, so every text gets its own group.
        rows = tuple(
            row_spec(
                encoding,
                backbone.config.num_layers,
                backbone=self._row_backbones[backbone.digest],
                group=next(self._embedding_groups),
                caller=request.handling.caller,
                priority=request.handling.priority,
            )
            for encoding in chain.from_iterable(encoded[reading])
        )
        return AskedBackbone(rows=rows), tokenize_s

    async def _read(
        self, request: PredictionRequest, permit: Permit, deadline: float, pace: Pace, name: Name
    ) -> tuple[list[AskedTask | TaskFailure], float]:
        resolved = await self._find_all(request)
        found = list[Chosen | TaskFailure]()
        for text, item in zip(request.references, resolved, strict=True):
            # Each task looks at the form of each input.
            await pace.count(len(request.inputs))
            chosen = (
                self._choose(text, item, request, permit) if isinstance(item, Traffic) else item
            )
            if isinstance(chosen, Chosen):
                name(text, chosen.manifest.task)
            found.append(chosen)
        readings = {
            key_of(manifest): reading_of(manifest, request.options)
            for item in found
            if isinstance(item, Chosen)
            for manifest in item.manifests
        }
        encoded, tokenize_s = await self._encode(request, readings.values())
        extents = dict[Reading, tuple[Extent, ...]]()
        for reading, inputs in encoded.items():
            extents[reading] = tuple(map(extent_of, inputs))
            await pace.count(sum(map(len, inputs)))
        read = _ReadInputs(
            request=request,
            deadline=deadline,
            pace=pace,
            readings=readings,
            encodings=encoded,
            extents=extents,
            groups=defaultdict(self._groups.__next__),
            backbones=self._row_backbones,
            joins=self._joins,
        )
        checked, num_rows = list[Chosen | TaskFailure](), defaultdict[str, float](float)
        for text, item in zip(request.references, found, strict=True):
            kept = self._check(text, item, read) if isinstance(item, Chosen) else item
            checked.append(kept)
            if isinstance(kept, Chosen):
                size = sum(map(len, read.encodings_of(kept.manifest)))
                num_rows[kept.manifest.task] += MIN_COST * size
                await pace.count(size)
        self._observe_long(checked, read)
        _refuse_if_all_do(checked, found)
        permit.take_tokens(num_rows)
        asked = [
            await read.ask(text, item) if isinstance(item, Chosen) else item
            for text, item in zip(request.references, checked, strict=True)
        ]
        return asked, tokenize_s

    async def _encode(
        self, request: PredictionRequest | EmbeddingRequest, readings: Iterable[Reading]
    ) -> tuple[Mapping[Reading, list[Encodings]], float]:
        started = self._clock()
        encoded = await self._tokenization.encode(
            request.inputs, readings=readings, caller=request.handling.caller
        )
        return encoded, self._clock() - started

    def _choose(
        self, text: str, traffic: Traffic, request: PredictionRequest, permit: Permit
    ) -> Chosen | TaskFailure:
        # A canary and a shadow read every form of input that the alias's version reads.
        manifest = traffic.manifest
        problem = find_misfit(request.inputs, manifest.head.kind, manifest.reads)
        problem = problem or _find_lateness(request, manifest.task, permit)
        if problem:
            return TaskFailure(reference=text, error=problem, task=manifest.task)
        chosen = self._rollouts.choose(traffic, routing_key=request.handling.routing_key)
        if chosen.manifest.backbone.digest not in self._row_backbones:
            missing = self._backbones.mismatch(chosen.manifest)
            return TaskFailure(reference=text, error=missing, task=manifest.task)
        if chosen.shadow and chosen.shadow.backbone.digest != chosen.manifest.backbone.digest:
            # The registry refuses such a shadow, and a copy of an older registry may have one.
            self._rollouts.shadows.drop(manifest, chosen.shadow, num_inputs=len(request.inputs))
            return replace(chosen, shadow=None)
        return chosen

    def _check(self, text: str, chosen: Chosen, read: _ReadInputs) -> Chosen | TaskFailure:
        manifest, shadow = chosen.manifest, chosen.shadow
        problem = read.find_too_long(manifest)
        if problem is not None:
            return TaskFailure(reference=text, error=problem, task=manifest.task)
        if shadow is not None and read.find_too_long(shadow):
            # Without answers of the version, there is nothing to compare with the shadow.
            self._rollouts.shadows.drop(manifest, shadow, num_inputs=len(read.request.inputs))
            return replace(chosen, shadow=None)
        return chosen

    def _observe_long(self, checked: Sequence[Chosen | TaskFailure], read: _ReadInputs) -> None:
        for item in checked:
            if isinstance(item, Chosen):
                for extent in read.extents_of(item.manifest):
                    if extent.is_cut:
                        self._metrics.observe_long_input(item.manifest.task, OnLong.CUT)
                    elif extent.is_windowed:
                        self._metrics.observe_long_input(item.manifest.task, OnLong.WINDOWS)
            elif isinstance(item.error, TooManyTokensError) and item.task is not None:
                self._metrics.observe_long_input(item.task, OnLong.REFUSE)

    def _check_lengths(
        self, request: EmbeddingRequest, read: Sequence[Encodings], *, limit: int
    ) -> None:
        on_long = OnLong.CUT if request.truncates else OnLong.REFUSE
        for encoding in chain.from_iterable(read):
            if encoding.part.num_left_out:
                self._metrics.observe_long_input(BACKBONE, on_long)
        problem = None if request.truncates else find_cut(read, max_length=limit)
        if problem is not None:
            raise problem

    async def _find_all(self, request: PredictionRequest) -> list[Traffic | TaskFailure]:
        found = [self._find(text, request.handling.tasks) for text in request.references]
        wanted = dict.fromkeys(item for item in found if isinstance(item, TaskReference))
        resolved = await self._resolve(wanted, request.handling.caller)
        return [
            _resolved(text, item, resolved[item]) if isinstance(item, TaskReference) else item
            for text, item in zip(request.references, found, strict=True)
        ]

    def _find(self, text: str, tasks: TaskList) -> Traffic | TaskFailure | TaskReference:
        try:
            reference = TaskReference.parse(text)
        except InvalidNameError as error:
            return TaskFailure(reference=text, error=error)
        if not tasks.allows(reference.task):
            return TaskFailure(reference=text, error=TaskNotFoundError(reference.task))
        return self._facts.known(reference) or reference

    async def _resolve(
        self, references: Collection[TaskReference], caller: str
    ) -> Mapping[TaskReference, Traffic | NunatakError]:
        if not references:
            return {}
        try:
            return await self._facts.traffic(references, caller)
        except StoreUnavailableError as error:
            return dict.fromkeys(references, error)


def _resolved(
    text: str, reference: TaskReference, found: Traffic | NunatakError
) -> Traffic | TaskFailure:
    if not isinstance(found, NunatakError):
        return found
    task = None if isinstance(found, UNPROVEN_TASK) else reference.task
    return TaskFailure(reference=text, error=found, task=task)


def _find_lateness(
    request: PredictionRequest | EmbeddingRequest, task: str, permit: Permit
) -> DeadlineTooShortError | None:
    wait_s = permit.wait_s(task)
    if wait_s <= request.handling.deadline_s:
        return None
    return DeadlineTooShortError(deadline_s=request.handling.deadline_s, wait_s=wait_s)


def _refuse_if_all_do(
    checked: Sequence[Chosen | TaskFailure], found: Sequence[Chosen | TaskFailure]
) -> None:
    errors = [
        item.error
        for item, chosen in zip(checked, found, strict=True)
        if isinstance(chosen, Chosen) and isinstance(item, TaskFailure)
    ]
    if errors and not any(isinstance(item, Chosen) for item in checked):
        raise errors[0]
