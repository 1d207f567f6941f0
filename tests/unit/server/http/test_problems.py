"""The answers to errors and to failures outside of routes."""

import pytest

from nunatak_registry import StoreUnavailableError, TaskNotFoundError
from nunatak_server.errors import OverloadedError
from nunatak_server.http.problems import error_items, problem_of, problem_response


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


def test_error_items_are_bounded_and_name_our_fields_alone() -> None:
    canary = "my password is swordfish"
    errors = [
        {"type": "value_error", "loc": ("body", canary, it), "msg": "too dear", "input": canary}
        for it in range(1000)
    ]
    missing = {"type": "missing", "loc": ("body", "parameters", "top_k")}

    first, *others = error_items([missing, *errors])

    assert first == {"location": "body.parameters.top_k", "message": "expected a value, got none"}
    assert others == [{"location": f"body.?.{it}", "message": "too dear"} for it in range(9)]
