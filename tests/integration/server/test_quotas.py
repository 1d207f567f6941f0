"""Quotas over HTTP: every route over a quota, in the shape of its protocol."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from doubles.access import access_by_route, add_key, filled, status_of
from doubles.compat import litellm, portkey
from doubles.issuers import running_issuer
from doubles.policies import make_policy, make_rule, when
from doubles.serving import make_settings, running_client, running_server
from doubles.tasks import publish_tiny_task
from nunatak_contract.enums import OnFailure
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.access.keys import Scope
from nunatak_server.scheduler.turns import Quota

PREDICT = "/v1/tasks/tone/predict"
QUERY = {"inputs": "where is it?"}
REFUSED = 'nunatak_requests_total{outcome="quota_exceeded",task="unknown"}'
LITELLM = "/v1/verdicts/{policy}/beta/litellm_basic_guardrail_api"
PORTKEY = "/v1/verdicts/{policy}/portkey"
SHAPES: dict[str, tuple[str, Any]] = {
    "/v1/predict": ("code", "quota_exceeded"),
    "/v1/verdicts/{policy}": ("code", "quota_exceeded"),
    "/v1/verdicts/{policy}/stream": ("code", "quota_exceeded"),
    "/v1/moderations": ("error.code", "quota_exceeded"),
    "/v1/embeddings": ("error.type", "rate_limit_error"),
    "/rerank": ("error.type", "RateLimitError"),
    "/v1/systemone": ("detail.error_type", "rate_limit_error"),
    "/tei/tasks/{task}/predict": ("error_type", "overloaded"),
    "/srun/v1/classify": ("error.code", "overloaded"),
    "/api/v1/text/contents": ("code", 429),
    LITELLM: ("action", "BLOCKED"),
    PORTKEY: ("verdict", False),
}
"""A field of the refusal by a quota, for a route of each protocol."""
A_DAY = {Quota.REQUESTS_PER_DAY: 1}


def publish(opened: Registry, backbone: Backbone) -> None:
    publish_tiny_task(opened, backbone)
    opened.promote("tone", "prod", 1)
    label = opened.resolve("tone").head.labels[0]
    never = make_rule(when("tone", label, threshold=1.0))
    opened.policies.put(make_policy(never, name="tone", on_failure=OnFailure.ALLOW))


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def field_of(document: Any, path: str) -> Any:  # noqa: ANN401 - JSON
    for name in path.split("."):
        document = document[name]
    return document


async def test_every_route_but_an_operators_is_refused_over_a_quota(
    backbone: Backbone, registry: Registry, keys: Path
) -> None:
    spent, free = add_key(keys, "spent", quotas=A_DAY), add_key(keys, "free")
    async with running_client(backbone, registry, make_settings(api_keys_file=keys)) as client:
        assert (await client.post(PREDICT, json=QUERY, headers=spent)).status_code == 200
        num_refused = 0
        for (verb, template), needed in access_by_route().items():
            if needed is None:
                continue
            answer = await client.request(verb, filled(template), headers=spent, json=QUERY)
            is_refused = needed.scope is not Scope.ADMIN
            num_refused += is_refused
            if template == LITELLM:
                assert answer.json()["action"] == "BLOCKED"
            else:
                assert (status_of(answer) == 429) == is_refused, (verb, template)
            if is_refused:
                assert 1 <= int(answer.headers["retry-after"]) <= 86_400
                path, value = SHAPES.get(template, ("", None))
                assert not path or field_of(answer.json(), path) == value
        assert (await client.post(PREDICT, json=QUERY, headers=free)).status_code == 200
        metrics = (await client.get("/metrics", headers=free)).text

    assert f"{REFUSED} {num_refused:.1f}" in metrics.splitlines()
    assert 'nunatak_caller_requests_total{caller="spent",status="429"}' in metrics


@pytest.mark.parametrize(
    ("template", "body"),
    [(LITELLM, litellm("where is it?")), (PORTKEY, portkey("where is it?"))],
    ids=["litellm", "portkey"],
)
async def test_a_gateway_whose_quota_is_spent_stops_the_call(
    backbone: Backbone, registry: Registry, keys: Path, template: str, body: dict[str, Any]
) -> None:
    """The policy allows what fails, and a gateway may let a call go on after an error."""
    spent = add_key(keys, "spent", quotas={Quota.TOKENS_PER_DAY: 1})
    async with running_client(backbone, registry, make_settings(api_keys_file=keys)) as client:
        first, second = [
            await client.post(filled(template), json=body, headers=spent) for _ in range(2)
        ]

    assert (first.status_code, second.status_code) == (200, 200)
    assert first.json().get("verdict", first.json().get("action")) in {True, "NONE"}
    stopped = second.json()
    assert stopped.get("verdict", stopped.get("action")) in {False, "BLOCKED"}
    reason = stopped.get("blocked_reason") or stopped["data"]["reason"]
    assert "has spent its quota of 1 tokens a day" in reason


async def test_a_stream_that_has_begun_is_judged_to_its_end(
    backbone: Backbone, registry: Registry, keys: Path
) -> None:
    spent = add_key(keys, "spent", quotas={Quota.TOKENS_PER_DAY: 1})
    headers = {**spent, "content-type": "text/plain"}
    text = "where is it and who has seen it . " * 40

    async def pieces() -> AsyncGenerator[bytes]:
        for begin in range(0, len(text), 100):
            yield text[begin : begin + 100].encode()

    async with running_client(backbone, registry, make_settings(api_keys_file=keys)) as client:
        path = "/v1/verdicts/tone/stream"
        first = await client.post(path, content=pieces(), headers=headers)
        second = await client.post(path, content=pieces(), headers=headers)

    lines = first.text.splitlines()
    assert '"final":true' in lines[-1]
    assert '"failures":[]' in lines[-1]
    assert (second.status_code, second.json()["code"]) == (429, "quota_exceeded")


async def test_tokens_and_open_servers_have_the_quotas_of_the_settings(
    backbone: Backbone, registry: Registry
) -> None:
    limits = {"max_requests_per_day": 2}

    async def statuses(client: httpx.AsyncClient, headers: dict[str, str]) -> list[int]:
        answers = [await client.post(PREDICT, json=QUERY, headers=headers) for _ in range(3)]
        return [it.status_code for it in answers]

    async with running_client(backbone, registry, make_settings(**limits)) as client:
        assert await statuses(client, {}) == [200, 200, 429]
    with running_issuer("ES256") as issuer:
        settings = make_settings(oidc_issuer=issuer.url, **limits)
        async with running_client(backbone, registry, settings) as client:
            for tenant in ("acme", "other"):
                headers = {"authorization": f"Bearer {issuer.token(sub=tenant)}"}
                assert await statuses(client, headers) == [200, 200, 429]


def test_a_connection_stays_usable_after_a_refusal_before_the_body(
    backbone: Backbone, registry: Registry, keys: Path
) -> None:
    spent = add_key(keys, "spent", quotas=A_DAY)
    settings = make_settings(api_keys_file=keys)
    limits = httpx.Limits(max_connections=1)
    with (
        running_server(backbone, registry, settings) as address,
        httpx.Client(base_url=address, headers=spent, limits=limits) as client,
    ):
        sizes = [1, 900_000, 900_000]
        answers = [client.post(PREDICT, json={"inputs": "x" * size}) for size in sizes]
        alive = client.get("/livez")

    assert [it.status_code for it in answers] == [200, 429, 429]
    assert all("connection" not in it.headers for it in answers)
    assert alive.status_code == 200
