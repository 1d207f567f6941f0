"""Routes of operators: which version an alias means, and which versions are in memory."""

from fastapi import APIRouter, Request, Response

from nunatak_artifact import LoadedTask
from nunatak_registry import AliasEvent, TaskReference, check_alias_name, check_task_name
from nunatak_server.api.endpoints import (
    PROBLEMS,
    DeadlineHeader,
    VersionQuery,
    catalog_of,
    reference_text,
    runtime_of,
)
from nunatak_server.api.limits import StrictRoute
from nunatak_server.api.preloading import in_time
from nunatak_server.api.replies import reply
from nunatak_server.api.schemas import (
    AliasResponse,
    EvictResponse,
    PreloadResponse,
    PromoteRequest,
    RollbackRequest,
    UnpinResponse,
)
from nunatak_server.runtime import Runtime

router = APIRouter(route_class=StrictRoute, responses=PROBLEMS)


@router.put("/v1/tasks/{task}/aliases/{alias}", response_model=AliasResponse)
async def promote(
    request: Request,
    task: str,
    alias: str,
    body: PromoteRequest,
    deadline_ms: DeadlineHeader = None,
) -> Response:
    """Point an alias to a version.

    The version is loaded and probed first: one that cannot be served never gets the alias.
    """
    runtime = runtime_of(request)
    wanted = TaskReference(task=check_task_name(task), version=body.version)
    check_alias_name(alias)
    manifest = await catalog_of(request).resolve(wanted)
    await in_time(runtime.residency.preload(manifest), deadline_ms)
    event = await runtime.catalog.promote(
        task, alias, body.version, expected_version=body.expected_version
    )
    runtime.residency.invalidate()
    return reply(_alias_fields(event))


@router.post("/v1/tasks/{task}/aliases/{alias}/rollback", response_model=AliasResponse)
async def roll_back(
    request: Request,
    task: str,
    alias: str,
    body: RollbackRequest | None = None,
    deadline_ms: DeadlineHeader = None,
) -> Response:
    """Point an alias to the version it was promoted from; seen by the next request.

    That version is loaded and probed first, as one that is promoted.
    """
    runtime = runtime_of(request)
    check_task_name(task)
    check_alias_name(alias)
    await catalog_of(request).task(task)
    expected = body.expected_version if body else None
    current, target = await runtime.catalog.next_rollback(task, alias, expected_version=expected)
    wanted = TaskReference(task=task, version=target)
    manifest = await runtime.catalog.resolve(wanted)
    await in_time(runtime.residency.preload(manifest), deadline_ms)
    # An alias that moved meanwhile would go back to another version than the one just loaded.
    event = await runtime.catalog.rollback(task, alias, expected_version=current)
    runtime.residency.invalidate()
    return reply(_alias_fields(event))


@router.post("/v1/tasks/{task}/preload", response_model=PreloadResponse)
async def preload(
    request: Request, task: str, version: VersionQuery = None, deadline_ms: DeadlineHeader = None
) -> Response:
    """Load a version, so that the first request for it need not wait."""
    runtime = runtime_of(request)
    reference = TaskReference.parse(reference_text(task, version))
    manifest = await catalog_of(request).resolve(reference)
    loaded = await in_time(runtime.residency.preload(manifest), deadline_ms)
    return reply(_residency_fields(runtime, loaded))


@router.post("/v1/tasks/{task}/pin", response_model=PreloadResponse)
async def pin(
    request: Request, task: str, version: VersionQuery = None, deadline_ms: DeadlineHeader = None
) -> Response:
    """Load a version and keep it in memory, whatever else is asked for.

    What is pinned is the version that the reference means now, not the alias.
    """
    runtime = runtime_of(request)
    reference = TaskReference.parse(reference_text(task, version))
    manifest = await catalog_of(request).resolve(reference)
    loaded = await in_time(runtime.residency.pin(manifest), deadline_ms)
    return reply(_residency_fields(runtime, loaded))


@router.post("/v1/tasks/{task}/unpin", response_model=UnpinResponse)
async def unpin(request: Request, task: str, version: VersionQuery = None) -> Response:
    """Let one version of a task, or all, be evicted again; what is not pinned is left alone.

    An alias means the version that it points to now.
    """
    meant = await _versions_meant(request, reference_text(task, version))
    versions = runtime_of(request).residency.unpin(meant.task, meant.version)
    return reply({"task": meant.task, "versions": versions})


@router.post("/v1/tasks/{task}/evict", response_model=EvictResponse)
async def evict(request: Request, task: str, version: VersionQuery = None) -> Response:
    """Drop one version of a task, or all, from memory; refused while one is in use or pinned.

    An alias means the version that it points to now.
    """
    meant = await _versions_meant(request, reference_text(task, version))
    versions = runtime_of(request).residency.evict(meant.task, meant.version)
    return reply({"task": meant.task, "versions": versions})


async def _versions_meant(request: Request, text: str) -> TaskReference:
    """Return a version, or the task itself where all of its versions are meant.

    Raises `RegistryError` if there is no such task, or no such alias.
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
