from collections.abc import Iterator

import pytest

import nunatak_server.errors
from nunatak_contract.errors import ContractError
from nunatak_contract.requests import PredictRequest
from nunatak_model import ModelError
from nunatak_registry import RegistryError, TaskNotFoundError
from nunatak_server.errors import OverloadedError, ServerError
from nunatak_server.http.problems import STATUS_OF, error_items, problem_of

TREES = (ContractError, RegistryError, ModelError, ServerError)


def subclasses(tree: type[Exception]) -> Iterator[type[Exception]]:
    yield tree
    for child in tree.__subclasses__():
        yield from subclasses(child)


@pytest.mark.parametrize("tree", TREES)
def test_every_error_of_the_project_has_a_status(tree: type[Exception]) -> None:
    missing = [error.__name__ for error in subclasses(tree) if error not in STATUS_OF]

    assert missing == []


@pytest.mark.parametrize("tree", TREES)
def test_every_error_has_a_code_of_its_own_in_its_tree(
    tree: type[ContractError | RegistryError | ModelError | ServerError],
) -> None:
    codes = [error.__dict__["code"] for error in subclasses(tree) if "code" in error.__dict__]

    assert len(codes) == len(set(codes))


def test_the_docstring_shows_every_error_of_the_server() -> None:
    tree = nunatak_server.errors.__doc__ or ""

    assert [error.__name__ for error in subclasses(ServerError) if error.__name__ not in tree] == []


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
