from nunatak_contract.requests import PredictRequest
from nunatak_registry import TaskNotFoundError
from nunatak_server.errors import OverloadedError
from nunatak_server.http.problems import error_items, problem_of


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


def test_error_items_are_bounded_and_repeat_no_text() -> None:
    canary = "my password is swordfish"
    errors = [
        {"loc": ("body", canary, position), "msg": "unknown field", "input": canary}
        for position in range(1000)
    ]

    items = error_items(errors)

    assert len(items) == 10
    assert items[3] == {"location": "body.?.3", "message": "unknown field"}


def test_error_items_name_fields() -> None:
    assert "parameters" in PredictRequest.model_fields

    (item,) = error_items([{"loc": ("body", "parameters", "top_k"), "msg": "too small"}])

    assert item["location"] == "body.parameters.top_k"
