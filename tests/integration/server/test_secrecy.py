"""Nothing from callers is repeated in refusals, logs, metrics or memory reports."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from doubles.access import add_key
from doubles.backbones import tiny_backbone
from doubles.events import catch_from
from doubles.serving import make_settings, running_transport, serving_tone
from nunatak_contract.errors import NunatakError
from nunatak_registry import Registry
from nunatak_server.app import Application
from nunatak_server.telemetry.logs import JsonFormatter

CANARY = "swordfish"
JSON = {"content-type": "application/json"}
PREDICT = "/v1/tasks/tone/predict"
NOT_OURS = {"uvicorn.access", "httpx", "httpcore.http11", "httpcore.connection"}
"""The client's loggers, and a logger that the server turns off and pytest turns on."""
TEXTS = f"my {CANARY} is in here"

REFUSED: dict[str, dict[str, Any]] = {
    "no-json": {"content": f"{{{CANARY}"},
    "no-utf8": {"content": CANARY.encode() + b"\xff"},
    "twice": {"content": f'{{"{CANARY}": 1, "{CANARY}": 2}}'},
    "field": {"json": {"inputs": "x", CANARY: 1}},
    "value": {"json": {"inputs": {CANARY: CANARY}}},
    "items": {"json": {"inputs": [{"text": "x", CANARY: CANARY}] * 20}},
    "kind": {"json": {"inputs": {"question": TEXTS, "context": TEXTS}}},
    "nul": {"json": {"inputs": CANARY + "\0"}},
    "long": {"json": {"inputs": CANARY * 5000}},
    "function": {"json": {"inputs": "x", "parameters": {"function_to_apply": CANARY}}},
    "strategy": {"json": {"inputs": "x", "parameters": {"aggregation_strategy": CANARY}}},
    "parameter": {"json": {"inputs": "x", "parameters": {CANARY: CANARY}}},
    "top-k": {"json": {"inputs": "x", "parameters": {"top_k": CANARY}}},
    "deadline": {"json": {"inputs": "x"}, "headers": {"x-deadline-ms": CANARY}},
    "version": {"json": {"inputs": "x"}, "params": {"version": CANARY}},
    "query": {"json": {"inputs": "x"}, "params": {CANARY: CANARY}},
    "media": {"content": CANARY, "headers": {"content-type": f"text/{CANARY}"}},
    "key": {"json": {"inputs": TEXTS}, "headers": {"authorization": f"Bearer {CANARY}"}},
    "basic": {"json": {"inputs": TEXTS}, "headers": {"authorization": f"Basic {CANARY}"}},
}
ANSWERED: dict[str, dict[str, Any]] = {
    "text": {"json": {"inputs": [TEXTS, {"text": TEXTS, "text_pair": TEXTS}]}},
    "labels": {"json": {"inputs": "x", "parameters": {"ignore_labels": [CANARY]}}},
    "headers": {"json": {"inputs": "x"}, "headers": {"x-odd": CANARY, "user-agent": CANARY}},
    "cookie": {"json": {"inputs": "x"}, "headers": {"cookie": f"{CANARY}={CANARY}"}},
    "id": {"json": {"inputs": "x"}, "headers": {"x-request-id": f"{CANARY} {CANARY}"}},
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.json"


@pytest.fixture(scope="module")
def key(keys: Path) -> dict[str, str]:
    return add_key(keys, "all")


@pytest.fixture(scope="module")
def client(
    tmp_path_factory: pytest.TempPathFactory, keys: Path, key: dict[str, str]
) -> Generator[httpx.Client]:
    assert key, "there must be a key before the server reads the file"
    settings = make_settings(api_keys_file=keys)
    with (
        serving_tone(tmp_path_factory.mktemp("registry"), settings) as address,
        httpx.Client(base_url=address) as found,
    ):
        yield found


def test_what_is_sent_does_not_come_out_again(
    client: httpx.Client,
    key: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catch_from(("uvicorn.error", "nunatak_server", "asyncio"), caplog, monkeypatch)
    caplog.set_level(logging.DEBUG, "nunatak_server")
    caplog.set_level(logging.DEBUG, "asyncio")

    line = JsonFormatter()
    secrets = (CANARY, key["authorization"].removeprefix("Bearer "))

    def shows(*told: object) -> bool:
        text = " ".join(map(str, told))
        return any(it in text for it in secrets)

    for case, content in (REFUSED | ANSWERED).items():
        sent = {**content, "headers": key | JSON | content.get("headers", {})}
        for path in (PREDICT, "/v1/predict", "/v1/tasks/tone/preload"):
            answer = client.post(path, **sent)
            assert path != PREDICT or (answer.status_code == 200) == (case in ANSWERED), case
            assert not shows(answer.headers, answer.text), case
        own = [record for record in caplog.records if record.name not in NOT_OURS]
        # A line also shows the values of its event, which are no part of the message.
        logged = [f"{line.format(record)} {record.exc_info} {record.args}" for record in own]
        assert not shows(*logged, *capfd.readouterr()), case
    for path in ("/metrics", "/v1/memory", "/info", "/v1/tasks", "/openapi.json"):
        page = client.get(path, headers=key)
        assert page.status_code == 200
        assert not shows(page.headers, page.text), path


async def fail(_: Request) -> Response:
    raise ValueError(TEXTS)


async def fail_late(_: Request) -> Response:
    return StreamingResponse(one_line_of(ValueError(TEXTS)))


async def refuse_late(_: Request) -> Response:
    return StreamingResponse(one_line_of(NunatakError("invalid_request", problem=TEXTS)))


async def one_line_of(error: Exception) -> AsyncGenerator[bytes]:
    yield b"first"
    raise error


@pytest.mark.parametrize(
    ("endpoint", "kind"),
    [(fail, "ValueError"), (fail_late, "ValueError"), (refuse_late, "NunatakError")],
)
async def test_an_unexpected_failure_is_answered_or_cut_without_its_words(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    endpoint: Callable[[Request], Awaitable[Response]],
    kind: str,
) -> None:
    """Messages of exceptions quote wrong values, which may come from a request."""
    caplog.set_level(logging.ERROR, "nunatak_server")
    with Registry.open(tmp_path) as registry:
        async with running_transport(tiny_backbone(), registry) as transport:
            app = transport.app
            assert isinstance(app, Application)
            app.add_route("/fail", endpoint)
            transport.raise_app_exceptions = False
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                answer = await client.get("/fail")

    request_id = answer.headers["x-request-id"]
    if endpoint is fail:
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (500, "internal_error")
        assert problem["request_id"] == request_id
    else:
        assert answer.text == "first"
    assert f"request {request_id} failed ({kind})" in caplog.text
    assert CANARY not in answer.text + caplog.text
