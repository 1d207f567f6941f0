"""Routes of operators: canaries and shadows beside aliases."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from nunatak_registry import (
    DEFAULT_ALIAS,
    Candidate,
    CandidateEvent,
    CandidateEventKind,
    CandidateNotFoundError,
    CandidateRole,
    TaskReference,
    check_alias_name,
    check_task_name,
)
from nunatak_server.api.endpoints import PROBLEMS, DeadlineHeader, catalog_of, runtime_of
from nunatak_server.api.limits import StrictRoute
from nunatak_server.api.preloading import in_time
from nunatak_server.api.replies import reply
from nunatak_server.api.schemas import (
    CandidateEndRequest,
    CandidateRequest,
    CandidateResponse,
    ShadowResponse,
)
from nunatak_server.traffic.shadow_report import DRIFT_BOUNDS, ShadowReport

AliasQuery = Annotated[str, Query(description="the alias that it runs beside")]

router = APIRouter(route_class=StrictRoute, responses=PROBLEMS)


@router.put("/v1/tasks/{task}/aliases/{alias}/{role}", response_model=CandidateResponse)
async def set_candidate(
    request: Request,
    task: str,
    alias: str,
    role: CandidateRole,
    body: CandidateRequest,
    deadline_ms: DeadlineHeader = None,
) -> Response:
    """Let a version run beside the one an alias points to, as `canary` or `shadow`.

    The version is loaded and probed first: one that cannot be served gets no traffic.
    """
    runtime = runtime_of(request)
    wanted = TaskReference(task=check_task_name(task), version=body.version)
    check_alias_name(alias)
    manifest = await catalog_of(request).resolve(wanted)
    await in_time(runtime.residency.preload(manifest), deadline_ms)
    candidate = Candidate(task=task, alias=alias, role=role, version=body.version, share=body.share)
    event = await runtime.catalog.set_candidate(candidate, expected_version=body.expected_version)
    runtime.residency.invalidate()
    return reply(_candidate_fields(event))


@router.post("/v1/tasks/{task}/aliases/{alias}/{role}/end", response_model=CandidateResponse)
async def end_candidate(
    request: Request,
    task: str,
    alias: str,
    role: CandidateRole,
    body: CandidateEndRequest | None = None,
) -> Response:
    """Let an alias's requests be its own version's alone; seen by the next request."""
    runtime = runtime_of(request)
    check_alias_name(alias)
    await catalog_of(request).task(check_task_name(task))
    expected = body.expected_version if body else None
    event = await runtime.catalog.end_candidate(task, alias, role, expected_version=expected)
    runtime.residency.invalidate()
    return reply(_candidate_fields(event))


@router.get("/v1/tasks/{task}/shadow", response_model=ShadowResponse)
async def show_shadow(request: Request, task: str, alias: AliasQuery = DEFAULT_ALIAS) -> Response:
    """Tell how the shadow beside an alias has done on this server since it started."""
    runtime = runtime_of(request)
    reference = TaskReference(task=check_task_name(task), alias=check_alias_name(alias))
    traffic = await catalog_of(request).traffic(reference)
    shadow = traffic.shadow
    if shadow is None:
        raise CandidateNotFoundError(task, alias, CandidateRole.SHADOW)
    report = runtime.traffic.report(traffic.manifest, shadow.manifest)
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


def _report_fields(report: ShadowReport) -> dict[str, Any]:
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
