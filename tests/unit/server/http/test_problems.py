"""The answers to errors and to failures outside of routes."""

import logging
from collections.abc import AsyncGenerator
from types import SimpleNamespace

import pytest
from fastapi import FastAPI, Response
from fastapi.responses import StreamingResponse
from starlette.types import Message, Scope

from nunatak_contract.errors import NunatakError
from nunatak_contract.requests import PredictRequest
from nunatak_registry import StoreUnavailableError, TaskNotFoundError
from nunatak_server.errors import OverloadedError
from nunatak_server.http.access import give_id
from nunatak_server.http.problems import ANSWERS, error_items, problem_of, problem_response


async def one_line_of(error: Exception) -> AsyncGenerator[bytes]:
    yield b"first\n"
    raise error


def test_a_problem_has_the_documented_fields() -> None:
    problem = problem_of(TaskNotFoundError("tone"), request_id="abc")

    assert problem == {
        "type": "urn:nunatak:problem:task_not_found",
        "title": "Task not found",
        "status": 404,
        "detail": str(TaskNotFoundError("tone")),
        "code": "task_not_found",
        "request_id": "abc",
    }
    assert problem_of(OverloadedError("rows", 1, retry_after_s=1), request_id=None)["status"] == 429


def test_only_the_log_has_the_reason_of_the_store(caplog: pytest.LogCaptureFixture) -> None:
    reason = 'connection to server at "db.internal" failed for user "swordfish"'

    answer = problem_response({"type": "http", "headers": []}, StoreUnavailableError(reason))

    assert answer.status_code == 503
    assert b"swordfish" not in answer.body
    assert b"the server's log has the reason" in answer.body
    assert reason in caplog.text


def test_error_items_are_bounded_and_repeat_no_text() -> None:
    canary = "my password is swordfish"
    errors = [
        {"type": "value_error", "loc": ("body", canary, it), "msg": "too dear", "input": canary}
        for it in range(1000)
    ]

    items = error_items(errors)

    assert len(items) == 10
    assert items[3] == {"location": "body.?.3", "message": "too dear"}


def test_error_items_name_fields() -> None:
    assert "parameters" in PredictRequest.model_fields

    (item,) = error_items([{"type": "missing", "loc": ("body", "parameters", "top_k")}])

    assert item == {"location": "body.parameters.top_k", "message": "expected a value, got none"}


@pytest.mark.parametrize("error", [ValueError("secret"), NunatakError("draining")])
async def test_a_failure_after_an_answer_has_begun_is_logged_by_its_id_and_raised(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "nunatak_server")
    sent = list[Message]()
    app = FastAPI(exception_handlers=dict(ANSWERS))
    app.state.runtime = SimpleNamespace(replica_id="r1")

    @app.get("/")
    async def begin() -> Response:
        return StreamingResponse(one_line_of(error))

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"x-request-id", b"one")]
    scope: Scope = {"type": "http", "method": "GET", "path": "/", "headers": headers}
    scope |= {"query_string": b"", "asgi": {"spec_version": "2.4"}}  # pyrefly: ignore[unsupported-operation]
    scope["app"] = app  # pyrefly: ignore[unsupported-operation]
    give_id(scope)
    with pytest.raises((type(error), RuntimeError)) as raised:
        await app(scope, receive, send)

    assert raised.value is error or raised.value.__cause__ is error
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert f"request one failed ({type(error).__name__})" in caplog.text
    assert "secret" not in caplog.text
