"""Preparation: references and inputs of a request become versions, readings and rows.

resolve -> choose a version -> tokenize -> plan rows
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Final

from nunatak_contract.enums import OnLong
from nunatak_contract.errors import InvalidNameError, NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_contract.requests import Parameters
from nunatak_model import Encoding
from nunatak_registry import StoreUnavailableError, TaskNotFoundError, Traffic
from nunatak_server.access.keys import TaskList
from nunatak_server.catalog.catalog import KnownFacts
from nunatak_server.engine.backbones import Backbones
from nunatak_server.errors import DeadlineExceededError, DeadlineTooShortError, TooManyTokensError
from nunatak_server.outputs.outputs import on_long_of, reading_of, work_of
from nunatak_server.predict.known_rows import KnownRows
from nunatak_server.predict.types import (
    BACKBONE,
    Asked,
    AskedTask,
    EmbeddingRequest,
    PredictionRequest,
    TaskFailure,
)
from nunatak_server.rollouts.rollouts import Arm, Rollouts, ShadowRun
from nunatak_server.scheduler.admission import Permit
from nunatak_server.scheduler.rows import (
    ANONYMOUS,
    MIN_COST,
    Priority,
    RowBackbone,
    RowSpec,
    row_spec,
)
from nunatak_server.scheduler.turns import Pace, within
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
from nunatak_versions.versions import backbone_mismatch

# After any other error of a look-up, the task exists.
UNPROVEN_TASK = (TaskNotFoundError, StoreUnavailableError)


POINT_BYTES: Final = 6
"""A float holds 48 bits exactly, so no point rounds up to 1."""
Name = Callable[[str, str], None]
"""Receives each reference whose task exists, and the name of the task."""
Encoded = Mapping[Reading, list[Encodings]]
"""The encodings of each input, by reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    manifest: TaskManifest
    arm: Arm | None = None
    """The answering version; None if the alias has no canary."""
    shadow: TaskManifest | None = None


def choose(
    traffic: Traffic,
    *,
    routing_key: str,
    draw: Callable[[], float],
    may_answer: Callable[[TaskManifest], bool],
) -> Chosen:
    """Choose the versions for one request.

    A routing key makes the choice sticky. For each canary version, a key has one fixed point in
    [0, 1). The canary answers while this point is below the canary's share. Therefore:

    - equal keys get one version while the canary runs, on every server and after every restart;
    - a larger share moves keys to the canary, and moves no key back;
    - the points of different canaries are independent, so different callers try different canaries.

    While the canary may not answer, the alias's own version gets the canary's share. The shadow
    runs only where the alias's own version answers, because a report compares these two versions.
    """
    canary, shadow = traffic.canary, traffic.shadow
    arm = None if canary is None else Arm.ALIAS
    if canary is not None:
        point = point_of(routing_key, canary.manifest)
        if point < canary.share and may_answer(canary.manifest):
            return Chosen(manifest=canary.manifest, arm=Arm.CANARY)
    runs_shadow = shadow is not None and draw() < shadow.share
    return Chosen(
        manifest=traffic.manifest,
        arm=arm,
        shadow=shadow.manifest if shadow is not None and runs_shadow else None,
    )


def point_of(routing_key: str, canary: TaskManifest) -> float:
    """Return the point of a key in [0, 1): uniform over keys, fixed for each canary version."""
    digest = hashlib.sha256(f"{canary.reference}\0{routing_key}".encode()).digest()
    return int.from_bytes(digest[:POINT_BYTES], "big") / 256**POINT_BYTES


class _Rows:
    """The rows of one request. Tasks that read alike and split at one depth have equal rows."""

    def __init__(
        self,
        encoded: Encoded,
        *,
        backbones: Mapping[str, RowBackbone],
        next_group: Callable[[], int],
        pace: Pace,
    ) -> None:
        self._encoded = encoded
        self._backbones = backbones
        self._pace = pace
        # Equal encodings for one backbone share a trunk row, so they should meet in one batch.
        self._groups = defaultdict[tuple[str, Encoding], int](next_group)
        self._made = dict[tuple[Reading, int | None, str, Priority], tuple[RowSpec, ...]]()

    async def of(
        self, reading: Reading, split_depth: int | None, caller: str, priority: Priority
    ) -> tuple[RowSpec, ...]:
        key, backbone = (reading, split_depth, caller, priority), self._backbones[reading.backbone]

        def row_of(encoding: Encoding) -> RowSpec:
            group = self._groups[backbone.digest, encoding]
            return row_spec(
                encoding,
                split_depth,
                backbone=backbone,
                group=group,
                caller=caller,
                priority=priority,
            )

        if key not in self._made:
            encodings = chain.from_iterable(self._encoded[reading])
            self._made[key] = tuple(await self._pace.map(row_of, encodings))
        return self._made[key]


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
        known_rows: KnownRows,
        clock: Callable[[], float],
    ) -> None:
        """`known_rows` has those of texts that are no streams."""
        self._known_rows = known_rows
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
        self, request: PredictionRequest, permit: Permit, *, pace: Pace, name: Name | None
    ) -> tuple[list[Asked], float]:
        """Find the version for every reference, and plan the rows of the inputs.

        Returns each task with its readings or its failure, and the seconds of the tokenizer. The
        permit counts `MIN_COST` for each row before the row is made.
        """
        reading = self._read(request, permit, pace, name)
        return await within(request.handling.deadline_s, reading, late=DeadlineExceededError)

    async def read_texts(
        self, request: EmbeddingRequest, permit: Permit
    ) -> tuple[tuple[RowSpec, ...], float]:
        problem = _find_lateness(request, BACKBONE, permit)
        if problem is not None:
            raise problem
        backbone = self._backbones.with_digest(request.backbone)
        limit = backbone.max_embedding_tokens
        reading = Reading(
            max_length=limit, stride=None, backbone=backbone.digest, is_literal=request.is_literal
        )
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
        return rows, tokenize_s

    async def _read(
        self, request: PredictionRequest, permit: Permit, pace: Pace, name: Name | None
    ) -> tuple[list[Asked], float]:
        found = await self._choose_all(request, permit, pace, name)
        encoded, tokenize_s = await self._encode(request, _readings_of(found, request.options))
        read = await self._read_all(found, request, encoded, pace)
        if request.growing is None or request.growing.is_whole:
            self._observe_long(read)
        _refuse_if_all_do(read, found)
        asked = [it for it in read if isinstance(it, AskedTask)]
        caller, priority = request.handling.caller, request.handling.priority
        num_rows = defaultdict[str, float](float)
        for each in asked:
            wanted = [*chain.from_iterable(each.encodings)]
            # A shadow is compared with rows that are computed.
            if request.conditions and each.shadow is None:
                each.known = self._known_rows_of(request).find(caller, each.manifest, wanted)
                each.unknown = [it for it in dict.fromkeys(wanted) if it not in each.known]
                await pace.count(len(wanted))
                wanted = each.unknown
                self._metrics.count_task("known_rows", each.manifest.task, by=len(each.known))
            num_rows[each.manifest.task] += MIN_COST * len(wanted)
            head, options = each.manifest.head, request.options
            each.output_work = work_of(head, each.encodings, options=options)
        permit.take_tokens(num_rows)
        rows = _Rows(
            encoded, backbones=self._row_backbones, next_group=self._groups.__next__, pace=pace
        )
        for each in asked:
            each.rows = await rows.of(each.reading, each.manifest.split_depth, caller, priority)
            if each.unknown is not None:
                row_of = {it.encoding: it for it in each.rows}
                await pace.count(len(each.rows))
                each.rows = [row_of[it] for it in each.unknown]
            if each.shadow is not None:
                reading = reading_of(each.shadow, request.options)
                depth = each.shadow.split_depth
                each.shadow_run = ShadowRun(
                    answered=each.manifest,
                    shadow=each.shadow,
                    inputs=request.inputs,
                    encodings=each.encodings,
                    shadow_encodings=encoded[reading],
                    join=each.join,
                    rows=await rows.of(reading, depth, ANONYMOUS, Priority.NORMAL),
                    deadline=pace.deadline,
                )
        return read, tokenize_s

    async def keep(self, request: PredictionRequest, asked: Asked, pace: Pace) -> None:
        """Remember what a version has answered to a policy."""
        if isinstance(asked, AskedTask) and request.conditions:
            found = zip((it.encoding for it in asked.rows), asked.outcomes, strict=False)
            if request.growing is not None:
                windows = [*chain.from_iterable(asked.encodings)]
                found = (it for it in found if request.growing.stays(it[0], windows))
            known_rows, caller = self._known_rows_of(request), request.handling.caller
            await pace.map(lambda it: known_rows.keep(caller, asked.manifest, *it), found)

    def _known_rows_of(self, request: PredictionRequest) -> KnownRows:
        return self._known_rows if request.growing is None else request.growing.known_rows

    async def _choose_all(
        self, request: PredictionRequest, permit: Permit, pace: Pace, name: Name | None
    ) -> list[Asked]:
        found = list[Asked]()
        for text, item in zip(request.references, await self._find_all(request), strict=True):
            # Each task looks at the form of each input.
            await pace.count(len(request.inputs))
            task = self._choose(text, item, request, permit) if isinstance(item, Traffic) else item
            if name and isinstance(task, AskedTask):
                name(text, task.manifest.task)
            found.append(task)
        return found

    async def _read_all(
        self, found: Sequence[Asked], request: PredictionRequest, encoded: Encoded, pace: Pace
    ) -> list[Asked]:
        extents = dict[Reading, tuple[Extent, ...]]()
        for reading, inputs in encoded.items():
            extents[reading] = tuple(map(extent_of, inputs))
            await pace.count(sum(map(len, inputs)))
        read = list[Asked]()
        for task in found:
            kept = self._check(task, request, encoded) if isinstance(task, AskedTask) else task
            read.append(kept)
            if isinstance(kept, AskedTask):
                kept.encodings, kept.extents = encoded[kept.reading], extents[kept.reading]
                await pace.count(sum(map(len, kept.encodings)))
        return read

    async def _encode(
        self, request: PredictionRequest | EmbeddingRequest, readings: Iterable[Reading]
    ) -> tuple[Mapping[Reading, list[Encodings]], float]:
        started, encode = self._clock(), self._tokenization.encode
        caller = request.handling.caller
        growing = request.growing if isinstance(request, PredictionRequest) else None
        if growing is None or growing.is_whole:
            encoded = await encode(request.inputs, readings=readings, caller=caller)
            return encoded, self._clock() - started
        text, planned, begin = growing.plan(readings)
        found = await encode((text,), readings=planned.values(), caller=caller)
        taken = {
            it: [growing.take(it, *found[it], begin=begin)]
            for it in dict.fromkeys(planned.values())
        }
        return {it: taken[own] for it, own in planned.items()}, self._clock() - started

    def _choose(
        self, text: str, traffic: Traffic, request: PredictionRequest, permit: Permit
    ) -> Asked:
        # A canary and a shadow read every form of input that the alias's version reads.
        manifest = traffic.manifest
        problem = find_misfit(request.inputs, manifest.head.kind, manifest.reads)
        problem = problem or _find_lateness(request, manifest.task, permit)
        if problem:
            return TaskFailure(reference=text, error=problem, task=manifest.task)
        chosen = choose(
            traffic,
            routing_key=request.handling.routing_key,
            draw=self._rollouts.draw,
            may_answer=self._rollouts.may_answer,
        )
        manifest, shadow = chosen.manifest, chosen.shadow
        digest = manifest.backbone.digest
        if digest not in self._row_backbones:
            missing = backbone_mismatch(manifest, self._backbones)
            return TaskFailure(reference=text, error=missing, task=manifest.task)
        if request.growing is not None:
            # A comparison needs the whole text, which the stream may never reach.
            shadow = None
        elif shadow and shadow.backbone.digest != digest:
            # The registry refuses such a shadow, and a copy of an older registry may have one.
            self._rollouts.drop_shadow(manifest, shadow, num_inputs=len(request.inputs))
            shadow = None
        return AskedTask(
            reference=text,
            manifest=manifest,
            arm=chosen.arm,
            shadow=shadow,
            reading=reading_of(manifest, request.options),
            join=self._joins[digest],
        )

    def _check(self, asked: AskedTask, request: PredictionRequest, encoded: Encoded) -> Asked:
        manifest, shadow, options = asked.manifest, asked.shadow, request.options
        problem = _find_too_long(manifest, asked.reading, encoded, options)
        if problem is not None:
            return TaskFailure(reference=asked.reference, error=problem, task=manifest.task)
        if shadow and _find_too_long(shadow, reading_of(shadow, options), encoded, options):
            # Without answers of the version, there is nothing to compare with the shadow.
            self._rollouts.drop_shadow(manifest, shadow, num_inputs=len(request.inputs))
            asked.shadow = None
        return asked

    def _observe_long(self, read: Sequence[Asked]) -> None:
        for item in read:
            if isinstance(item, AskedTask):
                for extent in item.extents:
                    if extent.is_cut or extent.is_windowed:
                        on_long = OnLong.CUT if extent.is_cut else OnLong.WINDOWS
                        self._metrics.count_task("long_inputs", item.manifest.task, on_long.value)
            elif isinstance(item.error, TooManyTokensError) and item.task is not None:
                self._metrics.count_task("long_inputs", item.task, OnLong.REFUSE.value)

    def _check_lengths(
        self, request: EmbeddingRequest, read: Sequence[Encodings], *, limit: int
    ) -> None:
        on_long = OnLong.CUT if request.truncates else OnLong.REFUSE
        for encoding in chain.from_iterable(read):
            if encoding.part.num_left_out:
                self._metrics.count_task("long_inputs", BACKBONE, on_long.value)
        problem = None if request.truncates else find_cut(read, max_length=limit)
        if problem is not None:
            raise problem

    async def _find_all(self, request: PredictionRequest) -> list[Traffic | TaskFailure]:
        found = [self._find(text, request.handling.tasks) for text in request.references]
        wanted = dict.fromkeys(item for item in found if isinstance(item, TaskReference))
        resolved = await self._resolve(wanted, request)
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
        self, references: Collection[TaskReference], request: PredictionRequest
    ) -> Mapping[TaskReference, Traffic | NunatakError]:
        if not references:
            return {}
        looking = self._facts.traffic(references, request.handling.caller)
        try:
            if request.growing is None:
                return await looking
            # The known tasks of the look are asked in the rest of the time.
            limit_s = request.handling.deadline_s / 2
            return await within(limit_s, looking, late=DeadlineExceededError)
        except (StoreUnavailableError, DeadlineExceededError) as error:
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


def _readings_of(found: Iterable[Asked], options: Parameters) -> Iterator[Reading]:
    for each in found:
        if isinstance(each, AskedTask):
            yield each.reading
            if each.shadow is not None:
                yield reading_of(each.shadow, options)


def _find_too_long(
    manifest: TaskManifest, reading: Reading, encoded: Encoded, options: Parameters
) -> TooManyTokensError | None:
    if on_long_of(manifest, options) is not OnLong.REFUSE:
        return None
    return find_cut(encoded[reading], max_length=manifest.max_length)


def _refuse_if_all_do(read: Sequence[Asked], found: Sequence[Asked]) -> None:
    errors = [
        item.error
        for item, before in zip(read, found, strict=True)
        if isinstance(item, TaskFailure) and isinstance(before, AskedTask)
    ]
    if errors and not any(isinstance(item, AskedTask) for item in read):
        raise errors[0]
