import itertools
import os
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from itertools import cycle
from typing import Any

import httpx
import pytest
from _pytest.mark import ParameterSet
from schemathesis import Case

from doubles.access import add_key
from doubles.backbones import tiny_backbone
from doubles.policies import make_policy, make_rule, when
from doubles.schema_cases import SCHEMA, TRIALS, Target, Trial
from doubles.serving import make_settings, running_server
from doubles.tasks import publish_tiny_task
from nunatak_registry import Registry

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
    assert len(answer.content) < 4096


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
