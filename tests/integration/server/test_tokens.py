"""Tokens over HTTP: every route, forged tokens, tenants, rotation, and what is logged."""

import logging
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from doubles.access import access_by_route, add_key, filled, status_of
from doubles.issuers import Issuer, running_issuer, signed_with_the_public_key, unsigned
from doubles.serving import make_settings, running_client
from doubles.tasks import publish_tiny_task
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.access import tokens
from nunatak_server.access.keys import change_keys
from nunatak_server.app import Application, create_app
from nunatak_server.engine.backbones import Backbones

MINE, HIDDEN = "tone", "intent"
QUERY = {"inputs": "where is it?"}
ALL = "nunatak:predict nunatak:read nunatak:admin"


def publish(opened: Registry, backbone: Backbone) -> None:
    for seed, task in enumerate((MINE, HIDDEN)):
        publish_tiny_task(opened, backbone, task=task, seed=seed)


@pytest.fixture
def issuer(monkeypatch: pytest.MonkeyPatch) -> Generator[Issuer]:
    monkeypatch.setattr(tokens, "PAUSE_S", 0.0)
    with running_issuer("ES256") as running:
        yield running


@asynccontextmanager
async def client_of(
    backbone: Backbone, registry: Registry, issuer: Issuer, **changes: object
) -> AsyncGenerator[httpx.AsyncClient]:
    settings = make_settings(oidc_issuer=issuer.url, **changes)
    async with running_client(backbone, registry, settings) as client:
        yield client


@pytest.fixture
async def client(
    backbone: Backbone, registry: Registry, issuer: Issuer
) -> AsyncGenerator[httpx.AsyncClient]:
    async with client_of(backbone, registry, issuer) as opened:
        yield opened


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_no_forged_token_opens_any_route(client: httpx.AsyncClient, issuer: Issuer) -> None:
    good: dict[str, Any] = {"scope": ALL, "nunatak_tasks": "*"}
    forged = {
        "it has expired": issuer.token(exp=1, **good),
        "it is for another audience": issuer.token(aud="another", **good),
        "it is of another issuer": issuer.token(iss="https://issuer.example", **good),
        "its signature is wrong": issuer.token(key="foreign", **good),
        "the issuer has no such key": issuer.token(header={"kid": "unknown"}, **good),
        "it needs a key id, and a signature RS256 or ES256": unsigned(issuer, "none"),
    }
    guarded = [it for it, needed in access_by_route().items() if needed is not None]
    for number, (verb, template) in enumerate(guarded):
        # The first shows that every route looks; the others differ in why they are refused.
        for reason, token in list(forged.items())[: None if number % 10 == 0 else 1]:
            answer = await client.request(verb, filled(template), headers=bearer(token))
            assert status_of(answer) == 401, (verb, template, reason)
            assert answer.headers["www-authenticate"] == (
                f'Bearer realm="nunatak", error="invalid_token", error_description="{reason}"'
            )
            assert answer.headers["connection"] == "close"
            assert token not in answer.text
        hmac = await client.request(
            verb, filled(template), headers=bearer(signed_with_the_public_key(issuer))
        )
        assert status_of(hmac) == 401
        assert status_of(await client.request(verb, filled(template))) == 401


async def test_the_tasks_of_other_tenants_do_not_exist_for_a_token(
    client: httpx.AsyncClient, issuer: Issuer
) -> None:
    mine = bearer(issuer.token(scope=ALL, nunatak_tasks=[MINE]))
    theirs = bearer(issuer.token(scope=ALL, nunatak_tasks=HIDDEN, sub="other"))
    unscoped = bearer(issuer.token(scope="openid admin", nunatak_tasks="*"))
    assert (await client.get("/v1/tasks", headers=unscoped)).status_code == 403
    for headers, own, other in ((mine, MINE, HIDDEN), (theirs, HIDDEN, MINE)):
        listed = (await client.get("/v1/tasks", headers=headers)).json()["tasks"]
        assert [it["name"] for it in listed] == [own]
        assert (await client.get("/metrics", headers=headers)).status_code == 403
        for task, status in ((own, 200), (other, 404)):
            path = f"/v1/tasks/{task}/predict"
            asked = await client.post(path, headers=headers, json=QUERY)
            assert asked.status_code == status


async def test_keys_go_on_beside_tokens_and_the_history_names_both(
    backbone: Backbone, tmp_path: Path, issuer: Issuer
) -> None:
    keys = tmp_path / "keys.json"
    headers = [add_key(keys, "acme"), bearer(issuer.token(scope=ALL, nunatak_tasks="*"))]
    with Registry.open(tmp_path / "registry") as registry:
        for seed in range(2):
            publish_tiny_task(registry, backbone, seed=seed)
        async with client_of(backbone, registry, issuer, api_keys_file=keys) as client:
            for version, sent in enumerate(headers, start=1):
                place = "/v1/tasks/tone/aliases/prod"
                moved = await client.put(place, json={"version": version}, headers=sent)
                assert moved.status_code == 200
            wrong = await client.get("/v1/tasks", headers=bearer("nunatak_wrong"))
            metrics = (await client.get("/metrics", headers=headers[0])).text
        moves = [event.by for event in registry.history("tone", "prod")]

    assert wrong.json()["code"] == "unauthenticated"
    assert moves == ["key acme", "token:acme"]
    for caller in ("acme", "token:acme"):
        assert f'nunatak_caller_requests_total{{caller="{caller}",status="200"}} 1.0' in metrics


async def test_without_the_issuer_a_server_starts_answers_keys_and_lets_no_token_in(
    backbone: Backbone, registry: Registry, issuer: Issuer, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    key, token = add_key(keys, "one"), bearer(issuer.token())
    issuer.is_down = True
    async with client_of(backbone, registry, issuer, api_keys_file=keys) as client:
        for _ in range(2):
            assert (await client.get("/v1/tasks", headers=key)).status_code == 200
            refused = await client.get("/v1/tasks", headers=token)
            assert (refused.status_code, refused.json()["code"]) == (503, "issuer_unavailable")
            assert int(refused.headers["retry-after"]) >= 1
        issuer.is_down = False
        assert (await client.get("/v1/tasks", headers=token)).status_code == 200


async def test_nothing_of_a_token_is_logged(
    client: httpx.AsyncClient, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    sent = [issuer.token(), issuer.token(exp=1), issuer.token(header={"kid": "x"}), "a.b.c"]
    for token in sent:
        await client.get("/v1/tasks", headers=bearer(token))
    issuer.is_down = True
    await client.get("/v1/tasks", headers=bearer(issuer.token(header={"kid": "y"})))

    assert "the keys of the issuer stay as they were" in caplog.text
    for token in sent[:3]:
        for part in token.split("."):
            assert part not in caplog.text


async def test_a_token_of_a_new_key_is_not_refused_by_its_head(
    backbone: Backbone, registry: Registry, issuer: Issuer
) -> None:
    """A full or ending server refuses requests by their heads, where it cannot read keys."""
    app = create_app(
        make_settings(oidc_issuer=issuer.url), backbones=Backbones(backbone), registry=registry
    )
    async with app.router.lifespan_context(app):
        await app.state.authenticator.look_again()
        old = issuer.token()
        issuer.rotate("second")
        app.state.runtime.begin_drain()

        assert refusal_of(app, old) == 503
        assert refusal_of(app, issuer.token()) is None
        assert refusal_of(app, unsigned(issuer, "none")) == 401


def refusal_of(app: Application, token: str) -> int | None:
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/predict",
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {token}".encode()), (b"content-length", b"2")],
    }
    answer = app.refusal_of(scope)
    return None if answer is None else answer.status_code


async def test_a_server_with_an_issuer_needs_no_file_of_keys_to_be_reached(
    backbone: Backbone, registry: Registry, issuer: Issuer, tmp_path: Path
) -> None:
    async with client_of(backbone, registry, issuer, host="0.0.0.0") as client:  # noqa: S104 - never bound
        assert (await client.get("/v1/tasks")).status_code == 401
        assert (await client.get("/v1/tasks", headers=bearer(issuer.token()))).status_code == 200
    empty = tmp_path / "keys.json"
    change_keys(empty, lambda keys: keys)
    async with client_of(backbone, registry, issuer, api_keys_file=empty) as client:
        assert (await client.get("/v1/tasks", headers=bearer(issuer.token()))).status_code == 200
