"""Routes of operators: health, identity, metrics, aliases, candidates, and versions in memory.

A load may take longer than an operator wants to wait. Then the request fails, and the load goes on.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Final, TypeVar

from fastapi import Query, Request, Response

from nunatak_contract import wire
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.memory import MemoryReport
from nunatak_contract.names import DEFAULT_ALIAS, TaskReference, check_alias_name, check_task_name
from nunatak_contract.requests import (
    CandidateEndRequest,
    CandidateRequest,
    PromoteRequest,
    RollbackRequest,
)
from nunatak_model import Backbone
from nunatak_registry import (
    AliasEvent,
    Candidate,
    CandidateEvent,
    CandidateEventKind,
    CandidateRole,
    StoreUnavailableError,
)
from nunatak_server import VERSION
from nunatak_server.errors import DeadlineExceededError
from nunatak_server.http.access import actor_of
from nunatak_server.http.endpoints import (
    PROBLEMS,
    DeadlineHeader,
    QueryReference,
    Router,
    catalog_of,
    runtime_of,
)
from nunatak_server.http.middleware import StrictRoute
from nunatak_server.http.replies import backbone_memory, memory_report, reply
from nunatak_server.scheduler.turns import within
from nunatak_server.settings import ServerSettings
from nunatak_server.telemetry.memory import measure_process, peak_activations, take_stock
from nunatak_server.telemetry.metrics import CONTENT_TYPE, DRIFT_BOUNDS
from nunatak_versions import LoadedTask

LOAD_DEADLINE_S: Final = 120.0
"""Default time to wait for a load."""
TOO_LATE: Final = (
    "the version did not load in time, and nothing was changed: the registry or the store is slow, "
    "or versions in use leave no room; try again, evict others, or allow more time"
)
Load = Callable[[TaskManifest], Coroutine[Any, Any, LoadedTask]]
Result = TypeVar("Result")


async def in_time(work: Coroutine[Any, Any, Result], deadline_ms: int | None) -> Result:
    """Return what is looked up and loaded. A load that has begun continues after the deadline."""
    seconds = LOAD_DEADLINE_S if deadline_ms is None else deadline_ms / 1000
    return await within(seconds, work, late=partial(DeadlineExceededError, TOO_LATE))


async def _load(request: Request, reference: TaskReference, load: Load) -> LoadedTask:
    return await load(await catalog_of(request).resolve(reference))


logger = logging.getLogger(__name__)
router = Router(route_class=StrictRoute, responses=PROBLEMS)

PUBLISHED_LIMITS = {
    "max_body_bytes",
    "max_inputs",
    "max_call_texts",
    "max_documents",
    "max_tasks_per_request",
    "max_text_chars",
    "max_batch_tokens",
    "max_batch_rows",
    "max_queued_requests",
    "max_queued_tokens",
    "default_deadline_ms",
}


@router.show("/livez", answer=wire.Liveness)
async def live() -> Response:
    """Answer 200 while the event loop runs."""
    return reply(wire.Liveness(status="alive"))


@router.show("/health", "/readyz", answer=wire.ReadinessReport)
async def ready(request: Request) -> Response:
    """Answer 200 while the server accepts requests: a forward pass has run, and the engine works.

    `warnings` names problems of the registry.
    """
    runtime = runtime_of(request)
    runtime.readiness.check_ready()
    return reply(wire.ReadinessReport(status="ready", warnings=tuple(runtime.warnings())))


@router.read("/info", answer=wire.ServerInfo)
async def info(request: Request) -> Response:
    """Return the facts about this server.

    The registry's URL may hold secrets, so only its kind is shown.
    """
    runtime = runtime_of(request)
    backbone = runtime.backbone
    return reply(
        wire.ServerInfo(
            name="nunatak",
            version=VERSION,
            backbone=_backbone_info(backbone),
            other_backbones=tuple(map(_backbone_info, runtime.backbones.others)),
            device=str(backbone.device),
            dtype=str(backbone.dtype).removeprefix("torch."),
            kernels=tuple(runtime.kernels()),
            registry=registry_kind(runtime.settings),
            limits=runtime.settings.model_dump(include=PUBLISHED_LIMITS),
        )
    )


def _backbone_info(backbone: Backbone) -> dict[str, Any]:
    return {
        **dict(backbone_memory(backbone)),
        "num_layers": backbone.config.num_layers,
        "num_layers_held": len(backbone.layers),
        "hidden_width": backbone.config.hidden_width,
        "max_tokens": backbone.config.max_tokens,
        "speeds": {name: round(it, 2) for name, it in backbone.speeds.items()},
    }


def registry_kind(settings: ServerSettings) -> str:
    scheme, separator, _ = settings.registry.partition("://")
    return scheme.partition("+")[0] if separator else "folder"


@router.read_across_tasks("/v1/memory", answer=MemoryReport)
async def memory(request: Request) -> Response:
    """Return the memory report, with the bytes of one full model per task for comparison."""
    runtime = runtime_of(request)
    process = await asyncio.to_thread(measure_process)
    resident = runtime.residency.resident()
    ledger = take_stock(runtime.backbones, resident)
    held = ledger.shared_bytes + runtime.trunk_cache.stats.bytes
    activations = peak_activations(runtime.backbone, held_bytes=held)
    return reply(memory_report(runtime, resident, ledger, process, activations))


@router.read_across_tasks("/metrics", answer=None, response_class=Response)
async def metrics(request: Request) -> Response:
    """Return all metrics of this process in the Prometheus text format.

    Raises:
        NunatakError: `shared_port`, the next request might reach another process.
    """
    runtime = runtime_of(request)
    num_processes, own_port = runtime.settings.processes, runtime.settings.port
    if num_processes > 1 and request.scope["server"][1] != own_port:
        raise NunatakError("shared_port", processes=num_processes)
    text = await asyncio.to_thread(runtime.metrics.render, runtime.state())
    return Response(text, media_type=CONTENT_TYPE)


@router.read_across_tasks("/v1/replicas", answer=wire.ReplicaListing)
async def replicas(request: Request) -> Response:
    """Return the live replicas of the registry, as each described itself at its last beat."""
    runtime = runtime_of(request)
    listing = await runtime.catalog.poll(runtime.registry.replicas.listing)
    return reply(listing.model_dump(mode="json"))


WaitQuery = Annotated[
    int | None,
    Query(ge=1, le=60, description="answer when all replicas follow; 504 after these seconds"),
]


async def _change(
    request: Request,
    wait_s: int | None,
    expected: int | None,
    make: Callable[..., AliasEvent | CandidateEvent],
    *place: object,
) -> Response:
    """Make a change, let this server follow it at once, and wait for the others if asked to."""
    runtime = runtime_of(request)
    try:
        event = await runtime.catalog.change(
            make, *place, expected_version=expected, by=actor_of(request.scope)
        )
    except StoreUnavailableError as error:
        # The registry may have made the change, and a rollback that is repeated goes back twice.
        error.fields["retry_after_s"] = None
        raise
    await runtime.follow_own_change()
    task = event.task if isinstance(event, AliasEvent) else event.candidate.task
    with suppress(StoreUnavailableError):
        undecided = runtime.registry.policies.undecided
        for problem in await runtime.catalog.look_up(actor_of(request.scope), undecided, task):
            logger.warning("%s", problem)
    if wait_s is not None:
        await runtime.catalog.wait_for_replicas(wait_s)
    if isinstance(event, AliasEvent):
        return reply(wire.AliasChange.model_validate(event))
    is_set = event.kind is CandidateEventKind.SET
    return reply(wire.CandidateChange(**asdict(event.candidate), active=is_set))


async def _preload(
    request: Request, task: str, alias: str, version: int, deadline_ms: int | None
) -> None:
    wanted = TaskReference(task=check_task_name(task), version=version)
    check_alias_name(alias)
    await in_time(_load(request, wanted, runtime_of(request).residency.preload), deadline_ms)


AliasQuery = Annotated[str, Query(description="the alias of the candidate")]


@router.assign("/v1/tasks/{task}/aliases/{alias}/{role}", answer=wire.CandidateChange)
async def set_candidate(
    request: Request,
    task: str,
    alias: str,
    role: CandidateRole,
    body: CandidateRequest,
    deadline_ms: DeadlineHeader = None,
    wait_s: WaitQuery = None,
) -> Response:
    """Let a version run next to an alias, as `canary` or `shadow`.

    The version is loaded and probed first. A version that cannot be served gets no traffic.
    """
    await _preload(request, task, alias, body.version, deadline_ms)
    candidate = Candidate(task=task, alias=alias, role=role, version=body.version, share=body.share)
    rollouts = runtime_of(request).registry.rollouts
    return await _change(request, wait_s, body.expected_version, rollouts.set, candidate)


@router.change("/v1/tasks/{task}/aliases/{alias}/{role}/end", answer=wire.CandidateChange)
async def end_candidate(
    request: Request,
    task: str,
    alias: str,
    role: CandidateRole,
    body: CandidateEndRequest | None = None,
    wait_s: WaitQuery = None,
) -> Response:
    """End a candidate, so that the alias's own version gets all requests from the next one on."""
    check_alias_name(alias)
    await catalog_of(request).task(check_task_name(task))
    end = runtime_of(request).registry.rollouts.end
    expected = body.expected_version if body else None
    return await _change(request, wait_s, expected, end, task, alias, role)


@router.read("/v1/tasks/{task}/shadow", answer=wire.ShadowReport)
async def show_shadow(request: Request, task: str, alias: AliasQuery = DEFAULT_ALIAS) -> Response:
    """Return the results of an alias's shadow on this server since its start."""
    runtime = runtime_of(request)
    reference = TaskReference(task=check_task_name(task), alias=check_alias_name(alias))
    traffic = await catalog_of(request).traffic(reference)
    shadow = traffic.shadow
    if shadow is None:
        raise NunatakError("candidate_not_found", task=task, alias=alias, role=CandidateRole.SHADOW)
    report = runtime.rollouts.report(traffic.manifest, shadow.manifest)
    counts = zip((*DRIFT_BOUNDS, None), report.drift_counts, strict=True)
    return reply(
        wire.ShadowReport(
            task=task,
            alias=alias,
            version=traffic.manifest.version,
            shadow_version=shadow.manifest.version,
            share=shadow.share,
            compared=report.compared,
            agreement=report.agreement,
            errors=report.errors,
            dropped=report.dropped,
            mean_drift=report.mean_drift,
            max_drift=report.max_drift,
            drift_histogram=tuple(wire.DriftCount(up_to=up_to, inputs=it) for up_to, it in counts),
        )
    )


@router.assign("/v1/tasks/{task}/aliases/{alias}", answer=wire.AliasChange)
async def promote(
    request: Request,
    task: str,
    alias: str,
    body: PromoteRequest,
    deadline_ms: DeadlineHeader = None,
    wait_s: WaitQuery = None,
) -> Response:
    """Point an alias to a version.

    The version is loaded and probed first. A version that cannot be served never gets the alias.
    """
    await _preload(request, task, alias, body.version, deadline_ms)
    promote_to = runtime_of(request).registry.promote
    place = (task, alias, body.version)
    return await _change(request, wait_s, body.expected_version, promote_to, *place)


@router.change("/v1/tasks/{task}/aliases/{alias}/rollback", answer=wire.AliasChange)
async def roll_back(
    request: Request,
    task: str,
    alias: str,
    body: RollbackRequest | None = None,
    deadline_ms: DeadlineHeader = None,
    wait_s: WaitQuery = None,
) -> Response:
    """Point an alias back at its previous version, from the next request on.

    The previous version is loaded and probed first, like a promoted version.
    """
    runtime = runtime_of(request)
    check_task_name(task)
    check_alias_name(alias)

    async def load_target() -> int:
        await catalog_of(request).task(task)
        look, expected = runtime.registry.next_rollback, body.expected_version if body else None
        current, target = await runtime.catalog.change(look, task, alias, expected_version=expected)
        wanted = TaskReference(task=task, version=target)
        await _load(request, wanted, runtime.residency.preload)
        return current

    current = await in_time(load_target(), deadline_ms)
    # An alias that moved meanwhile would go back to another version than the one just loaded.
    return await _change(request, wait_s, current, runtime.registry.rollback, task, alias)


@router.change("/v1/tasks/{task}/preload", answer=wire.ResidencyReport)
async def preload(
    request: Request, reference: QueryReference, deadline_ms: DeadlineHeader = None
) -> Response:
    """Load a version, so that its first request does not wait."""
    return await _hold(request, runtime_of(request).residency.preload, reference, deadline_ms)


@router.change("/v1/tasks/{task}/pin", answer=wire.ResidencyReport)
async def pin(
    request: Request, reference: QueryReference, deadline_ms: DeadlineHeader = None
) -> Response:
    """Load a version and keep it in memory, even if other requests need the memory.

    The pin belongs to the version that the reference means now, and not to the alias.
    """
    return await _hold(request, runtime_of(request).residency.pin, reference, deadline_ms)


@router.change("/v1/tasks/{task}/unpin", answer=wire.Unpinning)
async def unpin(request: Request, reference: QueryReference) -> Response:
    """Let one version of a task, or all, be evicted again. Versions without a pin do not change.

    An alias means the version that it points to now.
    """
    meant = await _versions_meant(request, reference)
    versions = runtime_of(request).residency.unpin(meant.task, meant.version)
    return reply(wire.Unpinning(task=meant.task, versions=tuple(versions)))


@router.change("/v1/tasks/{task}/evict", answer=wire.Eviction)
async def evict(request: Request, reference: QueryReference) -> Response:
    """Drop one version of a task, or all, from memory. Refused while a version is in use or pinned.

    An alias means the version that it points to now.
    """
    meant = await _versions_meant(request, reference)
    versions = runtime_of(request).residency.evict(meant.task, meant.version)
    return reply(wire.Eviction(task=meant.task, versions=tuple(versions)))


async def _versions_meant(request: Request, text: str) -> TaskReference:
    """Return a reference with a version, or to the whole task, which means all its versions."""
    reference = TaskReference.parse(text)
    if reference.alias is None:
        await catalog_of(request).task(reference.task)
        return reference
    manifest = await catalog_of(request).resolve(reference)
    return TaskReference(task=manifest.task, version=manifest.version)


async def _hold(request: Request, load: Load, reference: str, deadline_ms: int | None) -> Response:
    task = await in_time(_load(request, TaskReference.parse(reference), load), deadline_ms)
    return reply(
        wire.ResidencyReport(
            task=task.manifest.task,
            version=task.manifest.version,
            resident=True,
            pinned=runtime_of(request).residency.is_pinned(task),
            bytes=task.num_bytes,
        )
    )
