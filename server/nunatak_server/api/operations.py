"""Routes of the machinery around the server: health, identity, memory, metrics."""

import asyncio
from importlib.metadata import version

from fastapi import APIRouter, Request, Response

from nunatak_server.api.endpoints import PROBLEMS, runtime_of
from nunatak_server.api.limits import StrictRoute
from nunatak_server.api.replies import backbone_fields, memory_fields, reply
from nunatak_server.api.schemas import (
    InfoResponse,
    MemoryResponse,
    ReadyResponse,
    StatusResponse,
)
from nunatak_server.observation.memory import measure_process, peak_activations, take_stock
from nunatak_server.observation.metrics import CONTENT_TYPE
from nunatak_server.process.settings import ServerSettings

router = APIRouter(route_class=StrictRoute, responses=PROBLEMS)

PUBLISHED_LIMITS = {
    "max_body_bytes",
    "max_inputs",
    "max_tasks_per_request",
    "max_text_chars",
    "max_batch_tokens",
    "max_batch_rows",
    "max_queued_requests",
    "max_queued_tokens",
    "default_deadline_ms",
}


@router.get("/livez", response_model=StatusResponse)
async def live() -> Response:
    """Answer as long as the event loop turns."""
    return reply({"status": "alive"})


@router.get("/readyz", response_model=ReadyResponse)
@router.get("/health", response_model=ReadyResponse)
async def ready(request: Request) -> Response:
    """Answer 200 while requests are taken: a forward pass has run, and the engine is well.

    What is wrong with the registry meanwhile is told by `warnings`.
    """
    runtime = runtime_of(request)
    runtime.readiness.check_ready()
    return reply({"status": "ready", "warnings": runtime.warnings()})


@router.get("/info", response_model=InfoResponse)
async def info(request: Request) -> Response:
    """Tell what this server is; of the registry only its kind, for its URL may hold secrets."""
    runtime = runtime_of(request)
    backbone = runtime.backbone
    return reply(
        {
            "name": "nunatak",
            "version": version("nunatak"),
            "backbone": {
                **backbone_fields(runtime),
                "num_layers": backbone.config.num_layers,
                "num_layers_held": len(backbone.layers),
                "hidden_width": backbone.config.hidden_width,
                "max_tokens": backbone.config.max_tokens,
            },
            "device": str(backbone.device),
            "dtype": str(backbone.dtype).removeprefix("torch."),
            "registry": registry_kind(runtime.settings),
            "limits": runtime.settings.model_dump(include=PUBLISHED_LIMITS),
        }
    )


def registry_kind(settings: ServerSettings) -> str:
    """Return `folder`, or the kind of database."""
    scheme, separator, _ = settings.registry.partition("://")
    return scheme.partition("+")[0] if separator else "folder"


@router.get("/v1/memory", response_model=MemoryResponse)
async def memory(request: Request) -> Response:
    """Tell what is in memory, and what one full model per task would take."""
    runtime = runtime_of(request)
    process = await asyncio.to_thread(measure_process)
    resident = runtime.residency.resident()
    ledger = take_stock(runtime.backbone, resident)
    held = ledger.shared_bytes + runtime.trunk_cache.stats.num_bytes
    activations = peak_activations(runtime.backbone, held_bytes=held)
    return reply(memory_fields(runtime, resident, ledger, process, activations))


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Give all metrics in the Prometheus text format."""
    runtime = runtime_of(request)
    text = await asyncio.to_thread(runtime.metrics.render, runtime.state())
    return Response(text, media_type=CONTENT_TYPE)
