"""The schema tells the truth: what it allows and what it forbids, tried by schemathesis."""

# schemathesis annotates its public names in parts only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Generator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import positive_data_acceptance

from doubles.backbones import tiny_backbone
from doubles.serving import make_settings, running_server
from doubles.tasks import publish_tiny_task
from nunatak_registry import Registry
from nunatak_server.api.errors import PROBLEM_TYPE
from nunatak_server.app import create_app
from nunatak_server.errors import DeadlineExceededError

EXAMPLES = 15
SCHEMA = schemathesis.openapi.from_dict(create_app(make_settings()).openapi())
CASES = [
    pytest.param(path, method, mode, id=f"{method} {path} {mode.value}")
    for path in SCHEMA
    for method in SCHEMA[path]
    for mode in GenerationMode
    # Where nothing is sent, nothing wrong can be.
    if mode is GenerationMode.POSITIVE or SCHEMA[path][method].definition.raw["parameters"]
]
BEYOND_SCHEMAS = {
    "invalid_name",  # an alias and a version at once, or a reference in a list
    "text_too_long",
    "too_many_inputs",
    "too_many_tasks",
}
"""Refusals of what a schema allows: limits of the settings, and rules between fields."""


def is_about_integers(problem: dict[str, Any]) -> bool:
    """Whether nothing is wrong but that 1.0 was sent, an integer to JSON Schema and not to us."""
    messages = {item["message"] for item in problem.get("errors", [])}
    return messages == {"Input should be a valid integer"}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    backbone = tiny_backbone()
    with Registry.open(tmp_path_factory.mktemp("registry")) as registry:
        publish_tiny_task(registry, backbone)
        with running_server(backbone, registry, make_settings()) as found:
            yield found


@pytest.mark.parametrize(("path", "method", "mode"), CASES)
def test_the_server_does_what_its_schema_says(
    address: str, path: str, method: str, mode: GenerationMode
) -> None:
    operation = SCHEMA[path][method]

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def try_one(case: Any) -> None:  # noqa: ANN401 - a class that schemathesis makes
        answer = case.call(base_url=address)
        problem = answer.json() if answer.headers["content-type"] == [PROBLEM_TYPE] else {}
        excluded = []
        if problem.get("code") in BEYOND_SCHEMAS or is_about_integers(problem):
            excluded = [positive_data_acceptance]
        if problem.get("code") == DeadlineExceededError.code:
            excluded = [not_a_server_error]
        case.validate_response(answer, excluded_checks=excluded)

    try_one()
