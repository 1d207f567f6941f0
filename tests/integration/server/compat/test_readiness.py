"""The readiness routes of every protocol agree."""

import httpx
import pytest
from fastapi import FastAPI

from doubles.serving import running_transport
from nunatak_model import Backbone
from nunatak_registry import Registry

PROBES = (
    "/readyz",
    "/health",
    "/v2/health/ready",
    "/v2/models/topic/ready",
    "/v2/models/topic/versions/1/ready",
    "/tei/tasks/topic/health",
    "/tei/tasks/topic/1/health",
    "/tei/backbone/health",
)


@pytest.mark.parametrize("path", PROBES)
async def test_a_server_that_is_about_to_leave_asks_for_no_more_by_any_protocol(
    backbone: Backbone, registry: Registry, path: str
) -> None:
    async with (
        running_transport(backbone, registry) as transport,
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
    ):
        assert (await client.get(path)).status_code == 200
        assert isinstance(transport.app, FastAPI)

        transport.app.state.runtime.announce_drain()

        assert (await client.get(path)).status_code == 503
        body = {"inputs": "taken still"}
        assert (await client.post("/v1/tasks/topic/predict", json=body)).status_code == 200
