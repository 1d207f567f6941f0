"""Pages of other sites: preflights over HTTP, and a real browser."""

from collections.abc import Generator

import httpx
import pytest
from fastapi import Request

from doubles.backbones import tiny_backbone
from doubles.browsers import NEEDS_CHROMIUM, running_browser
from doubles.serving import make_settings, running_server
from doubles.tasks import publish_tiny_task
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.app import create_app
from nunatak_server.engine.backbones import Backbones
from nunatak_server.http.problems import ANSWERS

APP, OTHER = "https://app.example", "https://other.example"
publish = publish_tiny_task
PREDICT = "/v1/tasks/tone/predict"
BODY = {"inputs": "where is it?"}
ASK = """async (url) => {
    const headers = {"content-type": "application/json", "x-deadline-ms": "9000"};
    const body = JSON.stringify({inputs: "where is it?"});
    try {
        const response = await fetch(url, {method: "POST", headers, body});
        return [response.status, response.headers.get("x-task-version")];
    } catch (error) {
        return [error.name, null];
    }
}"""


@pytest.fixture(scope="module")
def shared(backbone: Backbone, registry: Registry, address: str) -> Generator[str]:
    """A server for the pages of `APP`, and for the pages of the other server."""
    settings = make_settings(cors_origins=f"{APP}, {address}")
    with running_server(backbone, registry, settings) as found:
        yield found


def preflight(address: str, origin: str, *, method: str = "POST") -> httpx.Response:
    headers = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": "authorization,content-type",
        "sec-fetch-site": "cross-site",
    }
    return httpx.options(f"{address}{PREDICT}", headers=headers)


def sharing(answer: httpx.Response) -> dict[str, str]:
    prefix = "access-control-"
    return {
        name.removeprefix(prefix): value
        for name, value in answer.headers.items()
        if name.startswith(prefix)
    }


def asked(address: str, path: str = PREDICT, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(f"{address}{path}", json=BODY, headers=named)


def test_a_page_of_an_allowed_origin_may_send_its_key_and_body(shared: str) -> None:
    answer = preflight(shared, APP)

    assert answer.status_code == 200
    said = sharing(answer)
    assert said["allow-origin"] == APP
    assert said["allow-headers"] == "authorization,content-type"
    assert set(said["allow-methods"].split(", ")) == {"GET", "POST", "PUT"}
    assert "allow-credentials" not in said
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("origin", [OTHER, "null", f"{APP}.evil", APP.upper(), f"{APP}:8443"])
def test_no_page_of_another_origin_gets_leave(shared: str, origin: str) -> None:
    assert "allow-origin" not in sharing(preflight(shared, origin))
    refused = asked(shared, origin=origin, sec_fetch_site="cross-site")
    assert (refused.status_code, refused.json()["code"]) == (403, "cross_site")
    assert "allow-origin" not in sharing(refused)


def test_a_server_without_the_setting_gives_no_leave(address: str) -> None:
    answer = preflight(address, APP)

    assert answer.status_code == 405
    assert sharing(answer) == {}
    refused = asked(address, origin=APP, sec_fetch_site="cross-site")
    assert refused.json()["code"] == "cross_site"
    assert sharing(refused) == {}


def test_the_refusal_of_other_sites_agrees_with_the_leave(shared: str) -> None:
    for headers in ({"sec_fetch_site": "cross-site"}, {}):
        answer = asked(shared, origin=APP, **headers)
        assert answer.status_code == 200
        assert sharing(answer) == {"allow-origin": APP, "expose-headers": "*"}
        assert "Origin" in answer.headers["vary"]


def test_two_origins_are_none(shared: str) -> None:
    headers = [("origin", APP), ("origin", OTHER), ("sec-fetch-site", "cross-site")]

    answer = httpx.post(f"{shared}{PREDICT}", json=BODY, headers=headers)

    assert answer.json()["code"] == "cross_site"


def test_an_allowed_page_reads_why_it_is_refused(shared: str) -> None:
    answer = asked(shared, "/v1/tasks/nobody/predict", origin=APP)

    assert answer.json()["code"] == "task_not_found"
    assert sharing(answer)["allow-origin"] == APP


@pytest.mark.parametrize("origin", [APP, OTHER])
async def test_answers_outside_of_all_layers_are_read_too(registry: Registry, origin: str) -> None:
    settings = make_settings(cors_origins=APP)
    app = create_app(settings, backbones=Backbones(tiny_backbone()), registry=registry)
    async with app.router.lifespan_context(app):
        pass
    headers = [(b"origin", origin.encode()), (b"content-length", b"9")]
    scope = {"type": "http", "app": app, "method": "POST", "path": PREDICT, "headers": headers}
    refused = app.refusal_of(scope)
    unforeseen = await ANSWERS[Exception](Request(scope), RuntimeError())

    assert refused is not None
    for answer in (refused, unforeseen):
        found = answer.headers.get("access-control-allow-origin")
        assert found == (APP if origin == APP else None)


@NEEDS_CHROMIUM
def test_a_browser_lets_pages_of_the_named_origin_ask_and_no_others(
    address: str, shared: str
) -> None:
    with running_browser() as browser:
        page = browser.new_page()
        # A page without a policy of its own, which would forbid every other server.
        page.goto(f"{address}/livez")
        assert page.evaluate(ASK, f"{shared}{PREDICT}") == [200, "tone/1"]
        page.goto(f"{shared}/livez")
        assert page.evaluate(ASK, f"{address}{PREDICT}") == ["TypeError", None]
