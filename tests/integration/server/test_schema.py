"""The schema tells the truth: what it allows and what it forbids, tried by schemathesis."""

# schemathesis annotates its public names in parts only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import re
from collections.abc import Generator
from dataclasses import dataclass
from http import HTTPStatus
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
from nunatak_server.app import create_app

EXAMPLES = 15
SCHEMA = schemathesis.openapi.from_dict(create_app(make_settings()).openapi())


def can_be_wrong(operation: dict[str, Any]) -> bool:
    """Whether something can be sent that is not as it should be; any string is a string."""
    return any(
        item["schema"].keys() - {"title", "description"} != {"type"}
        or item["schema"]["type"] != "string"
        for item in operation["parameters"]
    )


CASES = [
    pytest.param(path, method, mode, id=f"{method} {path} {mode.value}")
    for path in SCHEMA
    for method in SCHEMA[path]
    for mode in GenerationMode
    if mode is GenerationMode.POSITIVE or can_be_wrong(SCHEMA[path][method].definition.raw)
]
BEYOND_SCHEMAS = {
    "invalid_name",  # an alias and a version at once, or a reference in a list
    "text_too_long",
    "too_many_inputs",
    "too_many_tasks",
}
"""Refusals of what a schema allows: limits of the settings, and rules between fields."""


BEYOND_NEIGHBOURS_SCHEMAS = re.compile(
    # A tensor's shape, its data and the other tensors of the request speak of each other.
    r"a tensor of \d+ texts has shape "
    r"|every input tensor must come once"
    r"|inputs must be the tensors "
    r"|all input tensors must have as many elements"
    r"|query must have one element"
    # Parameters that go with other tensors; where none may be, the schema says so.
    r"|parameters here may be: (?!none)"
    # A path that names an alias, and a version in the query.
    r"|alias must be .*, got '[^']*/\d+'$"
)
"""The same for neighbours, whose errors have no code."""
NOT_AN_INTEGER = "Input should be a valid integer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What a server says of what it refuses, in its own words or a neighbour's."""

    code: str = ""
    text: str = ""
    faults: tuple[str, ...] = ()

    @property
    def is_beyond_schemas(self) -> bool:
        """Whether it may be said of what a schema allows."""
        if self.code:
            is_known = self.code in BEYOND_SCHEMAS
        else:
            is_known = BEYOND_NEIGHBOURS_SCHEMAS.match(self.text) is not None
        # 1.0 is an integer to JSON Schema, and not to us.
        return is_known or set(self.faults) == {NOT_AN_INTEGER}


def refusal_in(content: object) -> Refusal:
    """Read a problem, ours or a neighbour's."""
    match content:
        case {"code": str(code), **rest}:
            faults = tuple(item["message"] for item in rest.get("errors", ()))
            return Refusal(code=code, faults=faults)
        case {"error": {"code": str(code), "message": str(text)}}:
            return Refusal(code=code, text=text, faults=faults_in(text))
        case {"error": str(text)}:
            return Refusal(text=text, faults=faults_in(text))
        case _:
            return Refusal()


def faults_in(text: str) -> tuple[str, ...]:
    """Return what is wrong with each field, which neighbours are told in one line."""
    before, _, listed = text.partition(": ")
    if before != "the request does not follow its schema":
        return ()
    return tuple(fault.partition(": ")[2] for fault in listed.split("; "))


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
        excluded = []
        if answer.status_code == HTTPStatus.GATEWAY_TIMEOUT:
            # The deadline that was sent, and nothing else, has this status.
            excluded = [not_a_server_error]
        elif answer.status_code >= 400 and refusal_in(answer.json()).is_beyond_schemas:
            excluded = [positive_data_acceptance]
        case.validate_response(answer, excluded_checks=excluded)

    try_one()
