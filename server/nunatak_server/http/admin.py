"""Routes of operators: health, identity, metrics, aliases, candidates, and versions in memory.

A load may take longer than an operator wants to wait. Then the request fails, and the load goes on.
"""

import asyncio
from collections.abc import Coroutine
from functools import partial
from importlib.metadata import version
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from nunatak_artifact import LoadedTask
from nunatak_contract import wire
from nunatak_contract.errors import NunatakError
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
)
from nunatak_server.access.keys import ANYONE, Scope
from nunatak_server.errors import DeadlineExceededError
from nunatak_server.http.access import PUBLIC, caller_of, needs
from nunatak_server.http.endpoints import (
    PROBLEMS,
    DeadlineHeader,
    VersionQuery,
    catalog_of,
    reference_text,
    runtime_of,
)
from nunatak_server.http.limits import StrictRoute
from nunatak_server.http.replies import backbone_fields, memory_fields, reply
from nunatak_server.rollouts.comparison import DRIFT_BOUNDS, ShadowComparison
from nunatak_server.runtime import Runtime
from nunatak_server.scheduler.turns import within
from nunatak_server.settings import ServerSettings
from nunatak_server.telemetry.memory import measure_process, peak_activations, take_stock
from nunatak_server.telemetry.metrics import CONTENT_TYPE

LOAD_DEADLINE_S: Final = 120.0
"""Default time to wait for a load."""
TOO_LATE: Final = (
    "the version did not load in time, and nothing was changed: the store is slow, or versions in "
    "use leave no room; try again, evict others, or allow more time"
)


async def in_time(load: Coroutine[Any, Any, LoadedTask], deadline_ms: int | None) -> LoadedTask:
    """Return the loaded version. A load that has begun continues after the deadline.

    Raises:
        DeadlineExceededError: the load has not ended in time.
    """
    seconds = LOAD_DEADLINE_S if deadline_ms is None else deadline_ms / 1000
    return await within(seconds, load, late=partial(DeadlineExceededError, TOO_LATE))


router = APIRouter(route_class=StrictRoute, responses=PROBLEMS)

PUBLISHED_LIMITS = {
    "max_body_bytes",
    "max_inputs",
    "max_documents",
    "max_tasks_per_request",
    "max_text_chars",
    "max_batch_tokens",
    "max_batch_rows",
    "max_queued_requests",
    "max_queued_tokens",
    "default_deadline_ms",
}


@router.get("/livez", dependencies=[PUBLIC], response_model=wire.Liveness)
async def live() -> Response:
    """Answer 200 while the event loop runs."""
    return reply({"status": "alive"})


@router.get("/readyz", dependencies=[PUBLIC], response_model=wire.ReadinessReport)
@router.get("/health", dependencies=[PUBLIC], response_model=wire.ReadinessReport)
async def ready(request: Request) -> Response:
    """Answer 200 while the server accepts requests: a forward pass has run, and the engine works.

    `warnings` names problems of the registry.
    """
    runtime = runtime_of(request)
    runtime.readiness.check_ready()
    return reply({"status": "ready", "warnings": runtime.warnings()})


@router.get("/info", dependencies=[needs(Scope.READ)], response_model=wire.ServerInfo)
async def info(request: Request) -> Response:
    """Return the facts about this server.

    The registry's URL may hold secrets, so only its kind is shown.
    """
    runtime = runtime_of(request)
    backbone = runtime.backbone
    return reply(
        {
            "name": "nunatak",
            "version": version("nunatak"),
            "backbone": _backbone_info(backbone),
            "other_backbones": [_backbone_info(it) for it in runtime.backbones.others],
            "device": str(backbone.device),
            "dtype": str(backbone.dtype).removeprefix("torch."),
            "kernels": runtime.kernels(),
            "registry": registry_kind(runtime.settings),
            "limits": runtime.settings.model_dump(include=PUBLISHED_LIMITS),
        }
    )


def _backbone_info(backbone: Backbone) -> dict[str, Any]:
    return {
        **backbone_fields(backbone),
        "num_layers": backbone.config.num_layers,
        "num_layers_held": len(backbone.layers),
        "hidden_width": backbone.config.hidden_width,
        "max_tokens": backbone.config.max_tokens,
    }


def registry_kind(settings: ServerSettings) -> str:
    """Return `folder`, or the kind of database."""
    scheme, separator, _ = settings.registry.partition("://")
    return scheme.partition("+")[0] if separator else "folder"


@router.get(
    "/v1/memory", dependencies=[needs(Scope.READ, spans_tasks=True)], response_model=MemoryReport
)
async def memory(request: Request) -> Response:
    """Return the memory report, with the bytes of one full model per task for comparison."""
    runtime = runtime_of(request)
    process = await asyncio.to_thread(measure_process)
    resident = runtime.residency.resident()
    ledger = take_stock(runtime.backbones, resident)
    held = ledger.shared_bytes + runtime.trunk_cache.stats.num_bytes
    activations = peak_activations(runtime.backbone, held_bytes=held)
    return reply(memory_fields(runtime, resident, ledger, process, activations))


@router.get("/metrics", dependencies=[needs(Scope.READ, spans_tasks=True)], response_class=Response)
async def metrics(request: Request) -> Response:
    """Return all metrics of this process in the Prometheus text format.

    Raises:
        NunatakError: `shared_port`, the next request might reach another process.
    """
    runtime = runtime_of(request)
    check_own_port(request, runtime.settings)
    text = await asyncio.to_thread(runtime.metrics.render, runtime.state())
    return Response(text, media_type=CONTENT_TYPE)


@router.get(
    "/v1/replicas",
    dependencies=[needs(Scope.READ, spans_tasks=True)],
    response_model=wire.ReplicaListing,
)
async def replicas(request: Request) -> Response:
    """Return the live replicas of the registry, as each described itself at its last beat."""
    runtime = runtime_of(request)
    listing = await runtime.catalog.poll(runtime.registry.replicas.listing)
    return reply(listing.model_dump(mode="json"))


def check_own_port(request: Request, settings: ServerSettings) -> None:
    """Refuse a request at the shared port of several processes.

    Raises:
        NunatakError: `shared_port`.
    """
    if settings.processes > 1 and request.scope["server"][1] != settings.port:
        raise NunatakError("shared_port", processes=settings.processes)


WaitQuery = Annotated[
    int | None,
    Query(ge=1, le=60, description="answer when all replicas follow; 504 after these seconds"),
]


async def _changed(runtime: Runtime, wait_s: int | None) -> None:
    """Let this server follow a change at once, and wait for the others if `wait_s` is given.

    Raises:
        NunatakError: `replicas_behind`, the change is made, and some replicas do not follow.
    """
    await runtime.follow_own_change()
    if wait_s is not None:
        await runtime.catalog.wait_for_replicas(wait_s)


AliasQuery = Annotated[str, Query(description="the alias of the candidate")]


@router.put(
    "/v1/tasks/{task}/aliases/{alias}/{role}",
    dependencies=[needs(Scope.ADMIN)],
    response_model=wire.CandidateChange,
)
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
    runtime = runtime_of(request)
    wanted = TaskReference(task=check_task_name(task), version=body.version)
    check_alias_name(alias)
    manifest = await catalog_of(request).resolve(wanted)
    await in_time(runtime.residency.preload(manifest), deadline_ms)
    candidate = Candidate(task=task, alias=alias, role=role, version=body.version, share=body.share)
    event = await runtime.catalog.change(
        runtime.registry.rollouts.set,
        candidate,
        expected_version=body.expected_version,
        by=_actor(request),
    )
    await _changed(runtime, wait_s)
    return reply(_candidate_fields(event))


@router.post(
    "/v1/tasks/{task}/aliases/{alias}/{role}/end",
    dependencies=[needs(Scope.ADMIN)],
    response_model=wire.CandidateChange,
)
async def end_candidate(
    request: Request,
    task: str,
    alias: str,
    role: CandidateRole,
    body: CandidateEndRequest | None = None,
    wait_s: WaitQuery = None,
) -> Response:
    """End a candidate, so that the alias's own version gets all requests from the next one on."""
    runtime = runtime_of(request)
    check_alias_name(alias)
    await catalog_of(request).task(check_task_name(task))
    expected = body.expected_version if body else None
    event = await runtime.catalog.change(
        runtime.registry.rollouts.end,
        task,
        alias,
        role,
        expected_version=expected,
        by=_actor(request),
    )
    await _changed(runtime, wait_s)
    return reply(_candidate_fields(event))


@router.get(
    "/v1/tasks/{task}/shadow", dependencies=[needs(Scope.READ)], response_model=wire.ShadowReport
)
async def show_shadow(request: Request, task: str, alias: AliasQuery = DEFAULT_ALIAS) -> Response:
    """Return the results of an alias's shadow on this server since its start."""
    runtime = runtime_of(request)
    reference = TaskReference(task=check_task_name(task), alias=check_alias_name(alias))
    traffic = await catalog_of(request).traffic(reference)
    shadow = traffic.shadow
    if shadow is None:
        raise NunatakError("candidate_not_found", task=task, alias=alias, role=CandidateRole.SHADOW)
    report = runtime.rollouts.shadows.report(traffic.manifest, shadow.manifest)
    return reply(
        {
            "task": task,
            "alias": alias,
            "version": traffic.manifest.version,
            "shadow_version": shadow.manifest.version,
            "share": shadow.share,
            **_report_fields(report),
        }
    )


def _actor(request: Request) -> str:
    """Return who changes an alias: a key by its name, or anyone on a server without keys."""
    caller = caller_of(request.scope)
    return caller.name if caller is ANYONE else f"key {caller.name}"


def _candidate_fields(event: CandidateEvent) -> dict[str, Any]:
    candidate = event.candidate
    return {
        "task": candidate.task,
        "alias": candidate.alias,
        "role": candidate.role,
        "version": candidate.version,
        "share": candidate.share,
        "active": event.kind is CandidateEventKind.SET,
    }


def _report_fields(report: ShadowComparison) -> dict[str, Any]:
    return {
        "compared": report.compared,
        "agreement": report.agreement,
        "errors": report.errors,
        "dropped": report.dropped,
        "mean_drift": report.mean_drift,
        "max_drift": report.max_drift,
        "drift_histogram": [
            {"up_to": bound, "inputs": count}
            for bound, count in zip((*DRIFT_BOUNDS, None), report.drift_counts, strict=True)
        ],
    }


@router.put(
    "/v1/tasks/{task}/aliases/{alias}",
    dependencies=[needs(Scope.ADMIN)],
    response_model=wire.AliasChange,
)
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
    runtime = runtime_of(request)
    wanted = TaskReference(task=check_task_name(task), version=body.version)
    check_alias_name(alias)
    manifest = await catalog_of(request).resolve(wanted)
    await in_time(runtime.residency.preload(manifest), deadline_ms)
    event = await runtime.catalog.change(
        runtime.registry.promote,
        task,
        alias,
        body.version,
        expected_version=body.expected_version,
        by=_actor(request),
    )
    await _changed(runtime, wait_s)
    return reply(_alias_fields(event))


@router.post(
    "/v1/tasks/{task}/aliases/{alias}/rollback",
    dependencies=[needs(Scope.ADMIN)],
    response_model=wire.AliasChange,
)
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
    await catalog_of(request).task(task)
    expected = body.expected_version if body else None
    current, target = await runtime.catalog.change(
        runtime.registry.next_rollback, task, alias, expected_version=expected
    )
    wanted = TaskReference(task=task, version=target)
    manifest = await catalog_of(request).resolve(wanted)
    await in_time(runtime.residency.preload(manifest), deadline_ms)
    # An alias that moved meanwhile would go back to another version than the one just loaded.
    event = await runtime.catalog.change(
        runtime.registry.rollback, task, alias, expected_version=current, by=_actor(request)
    )
    await _changed(runtime, wait_s)
    return reply(_alias_fields(event))


@router.post(
    "/v1/tasks/{task}/preload",
    dependencies=[needs(Scope.ADMIN)],
    response_model=wire.ResidencyReport,
)
async def preload(
    request: Request, task: str, version: VersionQuery = None, deadline_ms: DeadlineHeader = None
) -> Response:
    """Load a version, so that its first request does not wait."""
    runtime = runtime_of(request)
    reference = TaskReference.parse(reference_text(task, version))
    manifest = await catalog_of(request).resolve(reference)
    loaded = await in_time(runtime.residency.preload(manifest), deadline_ms)
    return reply(_residency_fields(runtime, loaded))


@router.post(
    "/v1/tasks/{task}/pin", dependencies=[needs(Scope.ADMIN)], response_model=wire.ResidencyReport
)
async def pin(
    request: Request, task: str, version: VersionQuery = None, deadline_ms: DeadlineHeader = None
) -> Response:
    """Load a version and keep it in memory, even if other requests need the memory.

    The pin belongs to the version that the reference means now, and not to the alias.
    """
    runtime = runtime_of(request)
    reference = TaskReference.parse(reference_text(task, version))
    manifest = await catalog_of(request).resolve(reference)
    loaded = await in_time(runtime.residency.pin(manifest), deadline_ms)
    return reply(_residency_fields(runtime, loaded))


@router.post(
    "/v1/tasks/{task}/unpin", dependencies=[needs(Scope.ADMIN)], response_model=wire.Unpinning
)
async def unpin(request: Request, task: str, version: VersionQuery = None) -> Response:
    """Let one version of a task, or all, be evicted again. Versions without a pin do not change.

    An alias means the version that it points to now.
    """
    meant = await _versions_meant(request, reference_text(task, version))
    versions = runtime_of(request).residency.unpin(meant.task, meant.version)
    return reply({"task": meant.task, "versions": versions})


@router.post(
    "/v1/tasks/{task}/evict", dependencies=[needs(Scope.ADMIN)], response_model=wire.Eviction
)
async def evict(request: Request, task: str, version: VersionQuery = None) -> Response:
    """Drop one version of a task, or all, from memory. Refused while a version is in use or pinned.

    An alias means the version that it points to now.
    """
    meant = await _versions_meant(request, reference_text(task, version))
    versions = runtime_of(request).residency.evict(meant.task, meant.version)
    return reply({"task": meant.task, "versions": versions})


async def _versions_meant(request: Request, text: str) -> TaskReference:
    """Return a reference with a version, or to the whole task, which means all its versions.

    Raises `NunatakError` if there is no such task, or no such alias.
    """
    reference = TaskReference.parse(text)
    if reference.alias is None:
        await catalog_of(request).task(reference.task)
        return reference
    manifest = await catalog_of(request).resolve(reference)
    return TaskReference(task=manifest.task, version=manifest.version)


def _residency_fields(runtime: Runtime, task: LoadedTask) -> dict[str, object]:
    return {
        "task": task.manifest.task,
        "version": task.manifest.version,
        "resident": True,
        "pinned": runtime.residency.is_pinned(task),
        "bytes": task.num_bytes,
    }


def _alias_fields(event: AliasEvent) -> dict[str, object]:
    return {
        "task": event.task,
        "alias": event.alias,
        "version": event.to_version,
        "previous_version": event.from_version,
    }
