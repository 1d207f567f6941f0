"""Requests that the schema allows or forbids, and a check that a server treats them so.

schemathesis makes the requests and checks most rules. This file checks the others.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from release import openapi

# Another test compares the file with a server, which takes more than a second to make it.
SCHEMA = schemathesis.openapi.from_dict(json.loads(openapi.FILE.read_text(encoding="utf-8")))
# A caller with valid headers is admitted everywhere.
SCHEMA.config.checks.positive_data_acceptance.expected_statuses = ["2xx", "404", "409", "5xx"]
KNOWN = {"task": "tone", "version": "1", "alias": "prod", "policy": "guard"}
"""Existing names for half of the requests, because random names are nearly always unknown."""
BEYOND_SCHEMAS = {
    "invalid_candidate",  # the version that the alias points to
    "invalid_name",  # an alias and a version at once, or a reference in a list
    "text_too_long",
    "too_many_inputs",
    "too_many_tasks",
    "wrong_input_kind",  # a question for a task that reads texts
}
"""Refusals that no schema expresses: limits of settings, rules between fields, kinds of tasks."""
BEYOND_NEIGHBOURS_SCHEMAS = re.compile(
    # A tensor's shape, its data and the other tensors of the request depend on each other.
    r"a tensor of \d+ texts has shape "
    r"|every input tensor must occur once"
    r"|inputs must be the tensors "
    r"|all input tensors must have as many elements"
    r"|query must have one element"
    # Parameters for other tensors. If no parameters are possible, the schema itself forbids them.
    r"|parameters here may be: (?!none)"
    # Parameters of another kind of task.
    r"|parameters of [\w ]+ may be: "
    r"|outputs here are: "
    # A path that names an alias, and a version in the query.
    r"|alias must be "
    r"|policy name must be "
    # Sides of different lengths, and a task for another route.
    r"|the first side must have one text"
    r"|this route is for "
    # Options and requests of other kinds of tasks, and bundles with tasks of no kind or two kinds.
    r"|the head of this model is "
    r"|overflow of token heads is "
    r"|threshold is an option of "
    r"|classify cannot ask "
    r"|each task of a bundle must have "
    # Parts of a call that no task reads.
    r"|no task reads "
    # A request without a name, from a key with several tasks.
    r"|the request names no task"
    # A question for a task that reads texts.
    r"|input \d+: the input is a \w+, and this [\w ]+ task reads "
    # Fields of a question that depend on its type, its names, and texts that are joined.
    r"|question \d+: "
    r"|questions must have different names"
    r"|JSON may have at most "
    r"|input 1: the text (?:is empty|contains) "
)
"""The same for other servers' protocols, whose errors have no code, or codes of their own."""
NOT_AN_INTEGER = "expected an integer, got a number"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The server's words about a refusal, in its own protocol or another server's."""

    code: str = ""
    text: str = ""
    faults: tuple[str, ...] = ()

    @property
    def is_beyond_schemas(self) -> bool:
        """Whether the refusal is right for a request that the schema allows."""
        in_words = BEYOND_NEIGHBOURS_SCHEMAS.match(self.text) is not None
        is_known = self.code in BEYOND_SCHEMAS or in_words
        # 1.0 is an integer in JSON Schema, but not for the server.
        return is_known or set(self.faults) == {NOT_AN_INTEGER}


def refusal_in(content: object) -> Refusal:
    """Read a problem, in our protocol or another server's."""
    match content:
        case {"code": str(code), **rest}:  # pyrefly: ignore[not-callable]
            faults = tuple(item["message"] for item in rest.get("errors", ()))
            return Refusal(code=code, faults=faults)
        case {"detail": [{"msg": str(text), "type": str(code)}, *others]}:  # pyrefly: ignore[not-callable]
            faults = (text, *(it["msg"] for it in others))
            return Refusal(code=code, text=text, faults=faults)
        case {"error": {"code": str(code), "message": str(text)}}:  # pyrefly: ignore[not-callable]
            return Refusal(code=code, text=text, faults=faults_in(text))
        case {"error": {"message": str(text)}}:  # pyrefly: ignore[not-callable]
            return Refusal(text=text, faults=faults_in(text))
        case {"error": str(text)}:  # pyrefly: ignore[not-callable]
            return Refusal(text=text, faults=faults_in(text))
        case _:
            return Refusal()


def faults_in(text: str) -> tuple[str, ...]:
    """Return the error of each field; other servers' protocols put all errors in one line."""
    before, _, listed = text.partition(": ")
    if before != "the request does not follow its schema":
        return ()
    return tuple(fault.partition(": ")[2] for fault in listed.split("; "))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server, and the headers that admit a caller."""

    address: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def check(self, case: Case[Any], *, limit_s: float) -> None:
        """Send a request and check its answer.

        Raises:
            FailureGroup: the server does not do as its schema says.
            OSError: it does not answer in time, or at all.
        """
        headers = dict(self.headers)
        answer = case.call(base_url=self.address, headers=headers, timeout=limit_s)
        excluded = []
        match answer.status_code:
            case HTTPStatus.GATEWAY_TIMEOUT:
                # Only the deadline of the request gives this status.
                excluded = [not_a_server_error]
            case HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                # A limit of the settings, checked before everything else.
                excluded = [positive_data_acceptance, negative_data_rejection]
            case HTTPStatus.OK if case.path.endswith("/stream"):
                # The errors of a streamed body are events, which come after the status.
                excluded = [negative_data_rejection]
            case status if status >= 400 and refusal_in(answer.json()).is_beyond_schemas:
                excluded = [positive_data_acceptance]
            case _:
                pass
        case.validate_response(answer, excluded_checks=excluded, headers=headers)  # pyrefly: ignore[bad-argument-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """An operation, and whether its requests follow its schema or violate it."""

    path: str
    method: str
    mode: GenerationMode

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.mode.value}"

    def each(self, try_one: Callable[[Case[Any]], None], *, num_examples: int) -> None:
        """Call with at most `num_examples` requests, always the same requests."""
        operation = SCHEMA[self.path][self.method]
        known = {name: value for name, value in KNOWN.items() if f"{{{name}}}" in self.path}
        strategy = operation.as_strategy(generation_mode=self.mode)
        if known:
            strategy |= operation.as_strategy(generation_mode=self.mode, path_parameters=known)

        @settings(
            max_examples=num_examples,
            derandomize=True,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        )
        @given(case=strategy)
        def run(case: Case[Any]) -> None:
            try_one(case)

        run()


def can_be_wrong(operation: dict[str, Any]) -> bool:
    """Whether a request can violate the schema; no string can violate the type string."""
    return any(
        item["schema"].keys() - {"title", "description"} != {"type"}
        or item["schema"]["type"] != "string"
        for item in operation["parameters"]
    )


TRIALS = [
    Trial(path=path, method=method, mode=mode)
    for path in SCHEMA
    for method in SCHEMA[path]
    for mode in GenerationMode
    # Gateways may take errors for a pass, so their routes answer a wrong request with a verdict.
    if mode is GenerationMode.POSITIVE or not path.endswith(("/portkey", "_guardrail_api"))
    if mode is GenerationMode.POSITIVE or can_be_wrong(SCHEMA[path][method].definition.raw)
]
