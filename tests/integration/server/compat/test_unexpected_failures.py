"""Unexpected failures in the routes of other protocols: an answer in their shape, and one line."""

import asyncio
import logging
from typing import Any

import httpx
import pytest
from fastapi import Request, Response

from doubles.compat import TEXT, portkey
from doubles.policies import make_policy, make_rule, when
from doubles.serving import running_client, running_transport
from nunatak_contract.enums import VerdictAction
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.app import Application
from nunatak_server.compat.translation import TranslatedRoute
from nunatak_server.http.access import PUBLIC

JSON = {"content-type": "application/json"}
WORDS = "swordfish"


class Panic(BaseException):
    """A failure of a native library, as PyO3 raises it."""


FAILURES = [ValueError(WORDS), Panic(WORDS), asyncio.CancelledError(WORDS), RecursionError()]


async def answer_of(
    backbone: Backbone, registry: Registry, protocol: str, error: BaseException
) -> httpx.Response:
    async def fail(_: Request) -> Response:
        raise error

    async with running_transport(backbone, registry) as transport:
        app = transport.app
        assert isinstance(app, Application)
        route = TranslatedRoute("/fail", fail, dependencies=[PUBLIC], tags=[protocol])
        app.router.routes.append(route)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get("/fail")


@pytest.mark.parametrize("error", FAILURES, ids=lambda it: type(it).__name__)
@pytest.mark.parametrize("protocol", ["Portkey", "LiteLLM"])
async def test_every_exception_in_a_guards_route_is_the_verdict_that_protects(
    backbone: Backbone, registry: Registry, protocol: str, error: BaseException
) -> None:
    answer = await answer_of(backbone, registry, protocol, error)

    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    assert (found.get("verdict", True), found.get("action")) in {(False, None), (True, "BLOCKED")}
    assert WORDS not in answer.text


@pytest.mark.parametrize(
    "protocol", ["OpenAI", "text-embeddings-inference", "vLLM, Jina and Cohere"]
)
async def test_an_exception_has_the_shape_of_the_other_server(
    backbone: Backbone, registry: Registry, protocol: str
) -> None:
    answer = await answer_of(backbone, registry, protocol, ValueError(WORDS))

    assert (answer.status_code, "error" in answer.json()) == (500, True)
    assert WORDS not in answer.text


async def test_an_exception_is_logged_once_with_its_origin(
    backbone: Backbone, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "nunatak_server")

    answer = await answer_of(backbone, registry, "Portkey", ValueError(WORDS))

    (record,) = caplog.records
    request_id = answer.headers["x-request-id"]
    assert record.getMessage() == f"request {request_id} failed (ValueError)"
    assert record.exc_info is not None


async def test_a_call_of_any_depth_gets_a_verdict(backbone: Backbone, registry: Registry) -> None:
    rule = make_rule(when("people", "X"), action=VerdictAction.MASK)
    registry.policies.put(make_policy(rule, name="mask"))
    content = portkey(TEXT)

    def body(depth: int) -> str:
        deep = "[" * depth + "]" * depth
        text = httpx.Request("POST", "http://test", json=content).content.decode()
        return text.replace('"messages":', f'"metadata":{deep},"messages":', 1)

    async with running_client(backbone, registry) as client:
        found = [
            await client.post("/v1/verdicts/mask/portkey", content=body(it), headers=JSON)
            for it in (1, 100, *range(236, 262), 2000)
        ]

    answers = [it.json() for it in found]
    assert {it.status_code for it in found} == {200}
    assert answers[0]["verdict"] is True
    assert answers[-1]["verdict"] is False
    assert all(it["verdict"] is False or "transformedData" in it for it in answers)
