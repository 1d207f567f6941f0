"""Access: every route, every verb, every scope, and tasks of other tenants."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import pytest

from doubles.access import access_by_route, add_key, filled, status_of
from doubles.compat import DETECTORS, detector, litellm, portkey
from doubles.policies import make_policy, make_rule, when
from doubles.serving import make_settings, running_client
from doubles.tasks import publish_tiny_task
from nunatak_contract.wire import TaskHistory
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.access.keys import KeyAuthenticator, Scope
from nunatak_server.app import create_app
from nunatak_server.engine.backbones import Backbones
from nunatak_server.http.access import PREDICT
from nunatak_server.http.middleware import StrictRoute
from nunatak_server.settings import ServerSettings

HEALTH = {
    "/livez",
    "/readyz",
    "/health",
    "/v2/health/live",
    "/v2/health/ready",
    "/tei/backbone/health",
    "/srun/health/live",
}
PUBLIC = {*HEALTH, "/", "/docs", "/page/{name}"}
NEIGHBOURS = (
    "/tei/",
    "/hf/",
    "/srun/",
    "/v2",
    "/v1/embeddings",
    "/v1/systemone",
    "/v1/decisions",
    "/v1/models",
    "/classify",
    "/score",
    "/v1/score",
    "/rerank",
    "/v1/rerank",
    "/v1/moderations",
    "/v1/verdicts/{policy}/",
    *DETECTORS,
)
"""Routes of other protocols, whose failures have their own shapes without our codes."""
STREAM = "/v1/verdicts/{policy}/stream"
"""A route whose body is no JSON; tests/integration/server/test_verdict_streams.py asks it."""
PORTKEY = "/v1/verdicts/{policy}/portkey"
VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "FOO")
"""The verbs of routes, and others."""
HOSTS = ("test", "", "localhost", "evil.example/livez?", "x@y", "/livez", "[::1", "a b", "\u00e9")
QUERY: dict[str, Any] = {"inputs": "where is it?"}
VERSION: dict[str, Any] = {"version": 1}
CANDIDATE: dict[str, Any] = {"version": 1, "share": 0.5}
RERANK: dict[str, Any] = {"query": "where?", "texts": ["here", "there"]}
TENSORS: dict[str, Any] = {
    "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["where is it?"]}]
}

ACCESS = access_by_route()
# The tasks have names of one length, so that equal answers also have equal lengths.
OF_NO_TASK = {
    "/v1/embeddings",
    "/v1/systemone",
    "/v1/decisions",
    "/tei/backbone",
    "/tei/backbone/embed",
    "/hf/backbone",
    "/v1/predict",
    "/srun/v1/bundle",
    "/srun/v1/embeddings",
}
"""Routes for the backbone and for questions, and the route that answers each task separately."""
POLICY_BODIES: dict[str, dict[str, Any]] = {
    "/v1/verdicts/{policy}": QUERY,
    "/v1/verdicts/{policy}/beta/litellm_basic_guardrail_api": litellm("where is it?"),
    "/v1/verdicts/{policy}/classify": {"model": "tone", "input": "where is it?"},
    PORTKEY: portkey("where is it?"),
    **{it: detector("where is it?", it) for it in DETECTORS},
}
"""The body for each route whose address or header names a policy, which has its task's name."""
Keys = dict[str, dict[str, str]]
MINE, HIDDEN, UNKNOWN = "tone", "intent", "nobody"
ALIAS = "/v1/tasks/{task}/aliases/{alias}"
BODIES: dict[tuple[str, str], list[Any]] = {
    ("POST", "/v1/tasks/{task}/predict"): [QUERY, {"inputs": ""}, {"inputs": 7}, {}],
    ("PUT", ALIAS): [VERSION, {"version": 9}, {"version": "x"}, {}],
    ("POST", f"{ALIAS}/rollback"): [None, {}, {"expected_version": 7}],
    ("PUT", f"{ALIAS}/{{role}}"): [CANDIDATE, {"version": 9}, {}],
    ("POST", f"{ALIAS}/{{role}}/end"): [None, {}, {"expected_version": 7}],
}
"""Right and wrong bodies for routes that name a task."""
BODIES_BY_END: dict[str, list[Any]] = {
    "/predict": [QUERY, {}],
    ":predict": [{"instances": ["where is it?"]}, {}],
    "/rerank": [RERANK, {}],
    "/infer": [TENSORS, {}],
    "": [QUERY, None],
}
"""The bodies for the other routes that name a task, by the first end that fits."""


def bodies_for(verb: str, template: str) -> list[Any]:
    if verb == "GET":
        return [None]
    ends = (bodies for end, bodies in BODIES_BY_END.items() if template.endswith(end))
    return BODIES.get((verb, template), next(ends))


NAMING_BODIES: dict[str, Callable[[str], dict[str, Any]]] = {
    "/srun/v1/classify": lambda task: {"model": task, "input": "where is it?"},
    "/srun/v1/rerank": lambda task: {"model": task, "query": "where?", "documents": ["here"]},
    "/classify": lambda task: {"model": task, "input": "where is it?"},
    "/score": lambda task: {"model": task, "text_1": "where?", "text_2": "here"},
    "/v1/score": lambda task: {"model": task, "text_1": "where?", "text_2": "here"},
    "/rerank": lambda task: {"model": task, "query": "where?", "documents": ["here"]},
    "/v1/rerank": lambda task: {"model": task, "query": "where?", "documents": ["here"]},
    "/v2/rerank": lambda task: {"model": task, "query": "where?", "documents": ["here"]},
    "/v1/moderations": lambda task: {"model": task, "input": "where is it?"},
}
"""The bodies for each route whose body names the task; a new route must be added here."""


def publish(opened: Registry, backbone: Backbone) -> None:
    for seed, task in enumerate((MINE, HIDDEN)):
        publish_tiny_task(opened, backbone, task=task, seed=seed)
        opened.promote(task, "prod", 1)
        label = opened.resolve(task).head.labels[0]
        rule = make_rule(when(task, label, threshold=1.0))
        opened.policies.put(make_policy(rule, name=task))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.json"


@pytest.fixture(scope="module")
def keys(file: Path) -> Keys:
    """The header of each caller: one for each scope, one for all scopes, and tenants."""
    callers: dict[str, dict[str, Any]] = {
        **{scope.value: {"scopes": [scope]} for scope in Scope},
        "ops": {},
        "tenant": {"tasks": [MINE, "mine-*"]},
        "owner": {"tasks": [HIDDEN]},
        "asker": {"tasks": ["to*"], "scopes": [Scope.PREDICT]},
    }
    return {name: add_key(file, name, **options) for name, options in callers.items()}


@pytest.fixture(scope="module")
def settings(file: Path, keys: Keys) -> ServerSettings:
    assert keys, "there must be keys before the server reads the file"
    return make_settings(api_keys_file=file)


@pytest.fixture(scope="module")
async def anyone(backbone: Backbone, registry: Registry) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of a server without keys."""
    async with running_client(backbone, registry) as opened:
        yield opened


def test_every_route_is_guarded_and_says_what_it_needs() -> None:
    routes = create_app(make_settings()).routes
    guarded = [route for route in routes if isinstance(route, StrictRoute)]

    assert routes == guarded
    assert [len(route.dependencies) for route in guarded] == [1] * len(guarded)
    assert {path for (_, path), needed in ACCESS.items() if needed is None} == PUBLIC
    computing = {path for (_, path), needed in ACCESS.items() if needed == PREDICT}
    named = {path for path in computing if "{task}" in path}
    assert computing - named - OF_NO_TASK - {STREAM} - set(POLICY_BODIES) == set(NAMING_BODIES)


async def test_without_a_key_no_verb_of_any_route_does_anything(client: httpx.AsyncClient) -> None:
    unusual = cycle(VERBS[4:])
    for template in sorted({path for _, path in ACCESS}):
        for verb in (*VERBS[:4], next(unusual)):
            answer = await client.request(verb, filled(template))
            is_public = template in PUBLIC and verb in {"GET", "HEAD"}
            allowed = {200} if is_public else {401, 405}
            assert status_of(answer) in allowed, (verb, template)
            if status_of(answer) == 401:
                assert answer.headers["www-authenticate"] == 'Bearer realm="nunatak"'
                if verb != "HEAD" and not template.startswith(NEIGHBOURS):
                    assert answer.json()["code"] == "unauthenticated"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer wrong",
        b"Basic d3Jvbmc6a2V5",
        b"Bearer \xc3\xa9\xff",
        b"Bearer " + b"x" * 1_000_000,
        b"\0",
    ],
    ids=lambda sent: repr(sent[:12]),
)
async def test_anything_but_a_key_is_unauthenticated(
    client: httpx.AsyncClient, sent: bytes
) -> None:
    answer = await client.get("/v1/tasks", headers=[(b"authorization", sent)])
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith('Bearer realm="nunatak"')
    assert answer.headers["connection"] == "close"


async def test_a_key_is_taken_once_and_under_any_spelling_of_its_scheme(
    client: httpx.AsyncClient, keys: Keys
) -> None:
    value = keys["ops"]["authorization"]
    key = value.removeprefix("Bearer ")

    for spelling in (value, f"bearer {key}", f"BEARER   {key}  "):
        answer = await client.get("/v1/tasks", headers={"authorization": spelling})
        assert answer.status_code == 200
    twice = [("authorization", value), ("authorization", value)]
    assert (await client.get("/v1/tasks", headers=twice)).status_code == 401
    in_address = await client.get(f"/v1/tasks?api_key={key}&access_token={key}")
    assert in_address.status_code == 401


async def test_the_host_header_opens_nothing(client: httpx.AsyncClient) -> None:
    guarded = [pair for pair in ACCESS if pair[1] not in PUBLIC]
    # Every route guards itself, so each gets one of the headers.
    for (verb, template), host in zip(guarded, cycle(HOSTS), strict=False):
        answer = await client.request(verb, filled(template), headers=[(b"host", host.encode())])
        assert status_of(answer) == 401, (verb, template, host)


async def test_each_scope_opens_its_own_routes_and_no_others(
    client: httpx.AsyncClient, keys: Keys
) -> None:
    others = cycle(Scope)
    for (verb, template), needed in ACCESS.items():
        own = next(others) if needed is None else needed.scope
        for scope in (own, next(it for it in others if it is not own)):
            answer = await client.request(verb, filled(template), headers=keys[scope.value])
            is_open = needed is None or needed.scope is scope
            assert (status_of(answer) not in {401, 403}) == is_open, (template, scope)
            if not is_open:
                if verb != "HEAD" and not template.startswith(NEIGHBOURS):
                    assert answer.json()["code"] == "insufficient_scope"
                assert needed is not None
                assert f'scope="{needed.scope}"' in answer.headers["www-authenticate"]
        if needed is not None:
            # A key with all scopes for some tasks does not read what is about all tasks.
            answer = await client.request(verb, filled(template), headers=keys["tenant"])
            assert (status_of(answer) == 403) == needed.spans_tasks, template


async def test_the_history_names_the_key_that_moved_an_alias(
    backbone: Backbone, tmp_path: Path, settings: ServerSettings, keys: Keys
) -> None:
    key = keys["ops"]
    place = "/v1/tasks/tone/aliases/prod"
    with Registry.open(tmp_path / "moved") as registry:
        for seed in range(2):
            publish_tiny_task(registry, backbone, seed=seed)
        async with running_client(backbone, registry, settings) as client:
            for version in (1, 2):
                await client.put(place, json={"version": version}, headers=key)
            shadow = {"version": 1, "share": 1.0}
            await client.put(f"{place}/shadow", json=shadow, headers=key)
            await client.post(f"{place}/shadow/end", headers=key)
            await client.post(f"{place}/rollback", headers=key)
            paths = ("/v1/tasks/tone/history", "/v1/tasks/tone@prod/history")
            answers = [await client.get(path, headers=key) for path in paths]
            absent = await client.get("/v1/tasks/tone@beta/history", headers=key)

    shown, of_alias = (TaskHistory.model_validate(answer.json()) for answer in answers)
    assert shown == of_alias
    assert [(it.kind, it.previous_version, it.version, it.by) for it in shown.events] == [
        ("promote", None, 1, "key ops"),
        ("promote", 1, 2, "key ops"),
        ("rollback", 2, 1, "key ops"),
    ]
    assert [(it.role, it.kind, it.by) for it in shown.candidates] == [
        ("shadow", "set", "key ops"),
        ("shadow", "end", "key ops"),
    ]
    assert absent.json()["code"] == "alias_not_found"


def spellings(template: str, task: str) -> list[str]:
    """Addresses that name a task with and without versions and aliases, right and wrong."""
    path = filled(template, task=task)
    if "{version}" in template:
        return [path, path.replace("/1/", "/9/"), path.replace("/1/", "/x/")]
    as_reference = [] if "{alias}" in template else ["@prod", "@beta", "@@"]
    tails = ["", "?version=1", "?version=9", "?version=x"]
    return [path + tail for tail in tails] + [
        filled(template, task=task + reference) for reference in as_reference
    ]


def seen(answer: httpx.Response) -> tuple[int, dict[str, str], bytes]:
    headers = {name: value for name, value in answer.headers.items() if not name.endswith("-ms")}
    return answer.status_code, headers, answer.content.replace(UNKNOWN.encode(), HIDDEN.encode())


async def test_a_hidden_task_and_a_missing_task_look_equal(
    client: httpx.AsyncClient, keys: Keys
) -> None:
    """Requests to every route with a task, with right and wrong versions, aliases and bodies."""
    headers, owner = keys["tenant"] | {"x-request-id": "same"}, keys["owner"]

    loaded = await client.post(f"/v1/tasks/{HIDDEN}/preload", headers=owner)
    assert loaded.status_code == 200
    for verb, template in (it for it in ACCESS if "{task}" in it[1]):
        for hidden, unknown in zip(
            spellings(template, HIDDEN), spellings(template, UNKNOWN), strict=True
        ):
            for body in bodies_for(verb, template):
                answers = [
                    await client.request(verb, path, json=body, headers=headers)
                    for path in (hidden, unknown)
                ]
                assert seen(answers[0]) == seen(answers[1]), (verb, hidden, body)
                assert answers[0].status_code in {404, 422}
    for path, body_for in NAMING_BODIES.items():
        for tail in ("", "@prod", "@beta", "/1", "/9", "@@"):
            answers = [
                await client.post(path, json=body_for(task + tail), headers=headers)
                for task in (HIDDEN, UNKNOWN)
            ]
            assert seen(answers[0]) == seen(answers[1]), (path, tail)
            assert answers[0].status_code in {404, 422}
    for template, body in POLICY_BODIES.items():
        answers = [
            await client.post(
                template.format(policy=name), json=body, headers={**headers, "detector-id": name}
            )
            for name in (HIDDEN, UNKNOWN)
        ]
        assert seen(answers[0]) == seen(answers[1]), template
        assert status_of(answers[0]) == 404
    policies = (await client.get("/v1/policies", headers=headers)).json()["policies"]
    assert [it["policy"]["name"] for it in policies] == [MINE]
    tasks = (await client.get("/v1/tasks", headers=headers)).json()["tasks"]
    assert [task["name"] for task in tasks] == [MINE]
    assert HIDDEN not in (await client.get("/info", headers=headers)).text
    resident = await client.get(f"/v1/tasks/{HIDDEN}", headers=owner)
    assert resident.json()["resident_versions"] == [1]


async def test_a_fan_out_answers_for_own_tasks_as_if_there_were_no_others(
    client: httpx.AsyncClient, keys: Keys
) -> None:
    headers = keys["tenant"] | {"x-request-id": "same"}

    for own in ([], [MINE]):
        for tail in ("", "@prod", "@beta", "/1", "/9", "@@"):
            answers = [
                await client.post(
                    "/v1/predict", json={**QUERY, "tasks": [*own, other + tail]}, headers=headers
                )
                for other in (HIDDEN, UNKNOWN)
            ]
            assert seen(answers[0]) == seen(answers[1])
            results = answers[0].json()["results"]
            assert ["outputs" in result for result in results] == [True] * len(own) + [False]


@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        ({"sec-fetch-site": "cross-site"}, True),
        ({"sec-fetch-site": "same-site"}, True),
        ({"sec-fetch-site": "same-origin", "origin": "https://proxy"}, False),
        ({"sec-fetch-site": "none"}, False),
        # Without TLS, browsers send only these headers.
        ({"origin": "http://elsewhere:8080", "host": "here:8080"}, True),
        ({"origin": "http://here:3000", "host": "here:8080"}, True),
        ({"origin": "null", "host": "here:8080"}, True),
        ({"origin": "http://here:8080", "host": "here:8080"}, False),
        ({"origin": "http://[::1]:8080", "host": "[::1]:8080"}, False),
        ({"host": "here:8080"}, False),
    ],
)
async def test_a_page_of_another_site_changes_nothing_at_an_open_server(
    anyone: httpx.AsyncClient, headers: dict[str, str], *, is_refused: bool
) -> None:
    """Browsers send requests without a body from any page, with the page's site in a header."""

    is_first = headers.get("sec-fetch-site") == "cross-site"
    routes = ACCESS if is_first else list(ACCESS)[::9]
    for verb, template in routes:
        answer = await anyone.request(verb, filled(template), headers=headers)
        assert (status_of(answer) == 403) == (is_refused and verb != "GET")
    assert (await anyone.post(f"/v1/tasks/{MINE}/evict")).status_code == 200


async def test_a_stranger_is_refused_before_the_body_is_read(client: httpx.AsyncClient) -> None:
    num_read = 0

    async def body() -> AsyncGenerator[bytes]:
        nonlocal num_read
        for _ in range(100):
            num_read += 1
            yield b" " * 65_536

    answer = await client.post(f"/v1/tasks/{MINE}/predict", content=body())
    assert answer.status_code == 401
    assert num_read <= 1


async def test_a_server_that_no_longer_reads_its_keys_lets_nobody_in(
    backbone: Backbone,
    registry: Registry,
    settings: ServerSettings,
    keys: Keys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed, may_break = asyncio.Event(), asyncio.Event()

    async def break_off(_: KeyAuthenticator) -> None:
        await may_break.wait()
        raise ZeroDivisionError

    monkeypatch.setattr(KeyAuthenticator, "run", break_off)
    path, key = f"/v1/tasks/{MINE}/predict", keys["ops"]
    app = create_app(
        settings, backbones=Backbones(backbone), registry=registry, on_fatal=lambda _: failed.set()
    )
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client,
    ):
        before = await client.post(path, json=QUERY, headers=key)
        may_break.set()
        await asyncio.wait_for(failed.wait(), 20)
        after = await client.post(path, json=QUERY, headers=key)
        ready = await client.get("/readyz")

    assert before.status_code == 200
    assert (after.status_code, after.json()["code"]) == (503, "not_ready")
    assert ready.status_code == 503
