"""Refusals of bad requests as problems, and requests that the schema allows or forbids."""

import itertools
import json
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import cycle
from typing import Any

import httpx
import pytest
import schemathesis
from _pytest.mark import ParameterSet
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from doubles.access import add_key
from doubles.backbones import tiny_backbone
from doubles.policies import make_policy, make_rule, when
from doubles.serving import make_settings, running_server
from doubles.tasks import publish_tiny_task
from nunatak_registry import Registry
from nunatak_server.http.problems import MAX_ERROR_ITEMS
from release import openapi

CANARY = "swordfish"
PREDICT = "/v1/tasks/tone/predict"
BODIES: dict[str, tuple[str, int, str]] = {
    "not-json": ("inputs", 400, "invalid_json"),
    "empty-object": ("{}", 422, "invalid_request"),
    "a-list": ('["swordfish"]', 422, "invalid_request"),
    "no-inputs": ('{"inputs": []}', 422, "invalid_request"),
    "numbers-in-list": ('{"inputs": ["swordfish"' + ", 7" * 60 + "]}", 422, "invalid_request"),
    "unknown-field": ('{"inputs": "x", "my swordfish": 1}', 422, "invalid_request"),
    "unknown-item-field": ('{"inputs": {"text": "x", "t": "y"}}', 422, "invalid_request"),
    "pair-without-text": ('{"inputs": {"text_pair": "swordfish"}}', 422, "invalid_request"),
    "top-k-zero": ('{"inputs": "x", "parameters": {"top_k": 0}}', 422, "invalid_request"),
    "top-k-text": ('{"inputs": "x", "parameters": {"top_k": "1"}}', 422, "invalid_request"),
    "function": (
        '{"inputs": "x", "parameters": {"function_to_apply": "swordfish"}}',
        422,
        "invalid_request",
    ),
    "empty-text": ('{"inputs": ""}', 422, "empty_text"),
    "white-space": ('{"inputs": [" \\n"]}', 422, "empty_text"),
    "empty-pair": ('{"inputs": {"text": "x", "text_pair": ""}}', 422, "empty_text"),
    "nul": ('{"inputs": "swordfish\\u0000"}', 422, "invalid_text"),
    "huge-text": ('{"inputs": "' + CANARY * 5000 + '"}', 422, "text_too_long"),
    "too-many": ('{"inputs": [' + ",".join(['"x"'] * 65) + "]}", 422, "too_many_inputs"),
    "many-faults": ('{"inputs": [' + ",".join(["7"] * 300_000) + "]}", 422, "invalid_request"),
    "many-texts": ('{"inputs": [' + ",".join(['"x"'] * 250_000) + "]}", 422, "invalid_request"),
    "many-fields": (
        "{" + ",".join(f'"{index}":1' for index in range(90_000)) + "}",
        422,
        "invalid_request",
    ),
}
publish = publish_tiny_task
NUM_EXAMPLES = 2 * int(os.environ.get("ABUSE", "1"))
"""`make abuse` tries many more."""
LIMIT_S = 30.0


@pytest.fixture
async def client(client: httpx.AsyncClient) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of a server that must still work at the end."""
    yield client
    assert (await client.get("/readyz")).status_code == 200
    assert (await client.post(PREDICT, json={"inputs": "well?"})).status_code == 200


def check_problem(answer: httpx.Response, status: int, code: str) -> None:
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["type"] == f"urn:nunatak:problem:{code}"
    assert problem["title"].lower().split() == code.split("_")
    assert problem["status"] == status
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert CANARY not in answer.text
    assert len(problem.get("errors", ())) <= MAX_ERROR_ITEMS
    assert len(answer.content) < 4096


@pytest.mark.parametrize(("body", "status", "code"), BODIES.values(), ids=BODIES.keys())
async def test_bad_bodies_get_their_documented_problem(
    client: httpx.AsyncClient, body: str, status: int, code: str
) -> None:
    answer = await client.post(PREDICT, content=body, headers={"content-type": "application/json"})
    check_problem(answer, status, code)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v1/tasks/nope/predict", "task_not_found"),
        ("/v1/tasks/tone/9/predict", "version_not_found"),
        ("/v1/tasks/tone@beta/predict", "alias_not_found"),
        ("/v1/tasks/tone@prod/1/predict", "invalid_name"),
        ("/v1/tasks/tone/0/predict", "invalid_name"),
        ("/v1/tasks/tone/-1/predict", "invalid_name"),
        ("/v1/tasks/tone/99999999999/predict", "invalid_name"),
        ("/v1/tasks/tone/predict?version=latest", "invalid_name"),
        ("/v1/tasks/tone/predict?version=", "invalid_name"),
        ("/v1/nope", "route_not_found"),
        ("/v1/tasks/tone/predict/", "route_not_found"),
    ],
)
async def test_missing_things_have_their_own_codes(
    client: httpx.AsyncClient, path: str, code: str
) -> None:
    answer = await client.post(path, json={"inputs": "x"})
    check_problem(answer, 422 if code == "invalid_name" else 404, code)


@pytest.mark.parametrize(
    ("method", "path", "accepted"),
    [
        ("POST", "/v1/tasks/tone/predict?verson=99", "only version, each once"),
        ("POST", "/v1/tasks/tone/predict?version=1&version=1", "only version, each once"),
        ("POST", "/v1/tasks/tone/predict?swordfish", "only version, each once"),
        ("POST", "/v1/tasks/tone/1/predict?version=99", "none"),
        ("POST", "/v1/predict?version=99", "none"),
        ("POST", "/v1/verdicts/guard?mode=dry_run", "none"),
        ("GET", "/v1/tasks?version=1", "none"),
        ("POST", "/v1/tasks/tone/preload?force=true", "only version, each once"),
    ],
)
async def test_a_query_parameter_without_effect_is_refused(
    client: httpx.AsyncClient, method: str, path: str, accepted: str
) -> None:
    answer = await client.request(method, path, json={"inputs": "x"})
    check_problem(answer, 422, "invalid_request")
    assert answer.json()["detail"].endswith(f"this route accepts {accepted}")


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/"])
async def test_a_public_route_accepts_all_query_parameters(
    client: httpx.AsyncClient, path: str
) -> None:
    assert (await client.get(f"{path}?from=a-balancer")).status_code == 200


async def test_a_wrong_method_is_refused_by_name(client: httpx.AsyncClient) -> None:
    answer = await client.delete(PREDICT)
    check_problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    assert answer.json()["detail"].startswith("this route accepts POST;")
    assert (await client.options("/readyz")).headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "media_type", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"]
)
async def test_another_media_type_is_refused(client: httpx.AsyncClient, media_type: str) -> None:
    answer = await client.post(
        PREDICT, content='{"inputs": "x"}', headers={"content-type": media_type}
    )
    check_problem(answer, 415, "unsupported_media_type")


async def test_a_compressed_body_is_refused_by_its_declaration(client: httpx.AsyncClient) -> None:
    for encoding, status in (("gzip", 415), ("x-anything", 415), ("Identity", 200)):
        answer = await client.post(
            PREDICT, json={"inputs": "x"}, headers={"content-encoding": encoding}
        )
        assert answer.status_code == status
        if status != 200:
            check_problem(answer, 415, "compressed_body")


@pytest.mark.parametrize(
    ("header", "value"),
    [
        *(("x-deadline-ms", it) for it in ("0", "-1", "600001", "soon", "1.5", "NaN", "")),
        *(("x-priority", it) for it in ("urgent", "", "HIGH", "0")),
    ],
)
async def test_an_impossible_deadline_or_priority_is_refused(
    client: httpx.AsyncClient, header: str, value: str
) -> None:
    answer = await client.post(PREDICT, json={"inputs": "x"}, headers={header: value})
    check_problem(answer, 422, "invalid_request")


@pytest.mark.parametrize("is_declared", [True, False])
async def test_a_body_over_the_limit_is_refused_declared_or_chunked(
    client: httpx.AsyncClient, *, is_declared: bool
) -> None:
    chunk = b" " * 65_536
    num_sent = itertools.count()

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(160):
            next(num_sent)
            yield chunk

    headers = {"content-type": "application/json"}
    content = chunk * 160 if is_declared else chunks()
    answer = await client.post(PREDICT, content=content, headers=headers)
    check_problem(answer, 413, "body_too_large")
    assert next(num_sent) <= 18


async def test_a_task_may_be_named_once(client: httpx.AsyncClient) -> None:
    for tasks, code in (
        (["tone", "tone"], "invalid_request"),
        ([], "invalid_request"),
        ([""], "invalid_request"),
        (["a" * 201], "invalid_request"),
        ([f"task-{index}" for index in range(65)], "too_many_tasks"),
    ):
        answer = await client.post("/v1/predict", json={"inputs": "x", "tasks": tasks})
        check_problem(answer, 422, code)


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


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Generator[list[Target]]:
    """An open server, and a server with keys that gets a key with all scopes."""
    backbone, folder = tiny_backbone(), tmp_path_factory.mktemp("server")
    keys = folder / "keys.json"
    headers = add_key(keys, "operator")
    with Registry.open(folder / "registry") as registry:
        publish_tiny_task(registry, backbone)
        registry.policies.put(make_policy(make_rule(when("tone", "urgent"))))
        with (
            running_server(backbone, registry, make_settings()) as anyone,
            running_server(backbone, registry, make_settings(api_keys_file=keys)) as keyed,
        ):
            yield [Target(address=anyone), Target(address=keyed, headers=headers)]


def with_repeats_marked() -> list[ParameterSet]:
    """Mark as slow the trials of a body that an earlier route takes, such as one with a version."""
    seen, marked = set[str](), list[ParameterSet]()
    for trial in TRIALS:
        raw = SCHEMA[trial.path][trial.method].definition.raw
        body = f"{trial.mode} {raw.get('requestBody', trial.path)}"
        marks = [pytest.mark.slow] if body in seen else []
        marked.append(pytest.param(trial, marks=marks, id=str(trial)))
        seen.add(body)
    return marked


@pytest.mark.parametrize("trial", with_repeats_marked())
def test_the_server_does_what_its_schema_says(targets: list[Target], trial: Trial) -> None:
    in_turn = cycle(targets)

    def try_one(case: Case[Any]) -> None:
        next(in_turn).check(case, limit_s=LIMIT_S)

    trial.each(try_one, num_examples=NUM_EXAMPLES)
