"""Requests and replies: JSON, ids, names, permissions of routes, and the list of tasks."""

import os
import re
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Response
from fastapi.testclient import TestClient
from hypothesis import example, given
from hypothesis import strategies as st

from doubles.backbones import tiny_backbone
from doubles.drafts import make_draft
from doubles.refusals import raises
from doubles.tasks import numbered
from doubles.watching import watched
from nunatak_contract.errors import InvalidNameError, NunatakError
from nunatak_contract.names import MAX_NAME_LENGTH, MAX_VERSION, TaskReference, check_version
from nunatak_model import embedding_branch
from nunatak_registry import ListedTask, StoreUnavailableError
from nunatak_server.access.keys import Scope
from nunatak_server.http.access import PUBLIC, Access, give_id, needs, request_id_of
from nunatak_server.http.endpoints import parse_json
from nunatak_server.http.middleware import StrictRoute
from nunatak_server.http.pages import REFERENCE, VERSION, integers_up_to
from nunatak_server.http.problems import problem_response
from nunatak_server.http.replies import summaries_of
from nunatak_versions import LoadedTask

REFUSED = {
    "nothing": b" ",
    "not-json": b"inputs=hello",
    "nan": b'{"a": NaN}',
    "infinity": b'{"a": -Infinity}',
    "overflow": b'{"a": 1e999}',
    "lone-surrogate": b'{"a": "\\ud800"}',
    "not-utf8": b'{"a": "\xff"}',
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "byte-order-mark": b'\xef\xbb\xbf{"a": 1}',
    "too-deep": b"[" * 5000 + b"]" * 5000,
    "trailing-comma": b'{"a": 1,}',
    "two-values": b"{}{}",
    "field-twice": b'{"a": 1, "a": 1}',
    "field-twice-in-a-list": b'[{"b": ":::"}, [{"a": 1, "b": 2, "a": 3}]]',
    "field-twice-by-an-escape": b'{"a": 1, "\\u0061": ":"}',
}
NUM = 3
LONGEST = "a" * MAX_NAME_LENGTH


def ids() -> list[str]:
    app = SimpleNamespace(state=SimpleNamespace(runtime=SimpleNamespace(replica_id="r")))
    scopes: list[dict[str, Any]] = [{"app": app, "headers": []} for _ in range(NUM)]
    for scope in scopes:
        give_id(scope)
    return [str(request_id_of(scope)) for scope in scopes]


def ids_of_fork() -> list[str]:
    """Return the first ids of a process that is forked from this one."""
    there, here = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(here, " ".join(ids()).encode())
        os._exit(0)
    os.close(here)
    os.waitpid(child, 0)
    with os.fdopen(there) as pipe:
        return pipe.read().split()


def accepts(schema: dict[str, str], text: str) -> bool:
    return re.search(schema["pattern"], text) is not None


async def other() -> None:
    """A dependency without any relation to access."""


async def endpoint() -> Response:
    return Response()


def route_with(dependencies: list[Any], *, of_router: list[Any] | None = None) -> StrictRoute:
    router = APIRouter(route_class=StrictRoute, dependencies=of_router)
    router.post("/", dependencies=dependencies)(endpoint)
    (route,) = router.routes
    assert isinstance(route, StrictRoute)
    return route


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_strict_json_is_refused_without_repeating_it(body: bytes) -> None:
    with raises("invalid_json") as refused:
        parse_json(body)

    assert str(refused.value) == str(NunatakError("invalid_json"))


@pytest.mark.parametrize(
    ("body", "parsed"),
    [
        ('{"a": ["\u00e9", 1.5, null]}', {"a": ["\u00e9", 1.5, None]}),
        ('{"a:": [{"b": "c::"}]}', {"a:": [{"b": "c::"}]}),
    ],
    ids=["all-kinds", "colons-in-texts"],
)
def test_strict_json_is_parsed(body: str, parsed: object) -> None:
    assert parse_json(body.encode()) == parsed


def test_no_two_processes_of_one_fork_give_the_same_ids() -> None:
    found = [*ids_of_fork(), *ids_of_fork(), *ids()]

    assert len(set(found)) == 3 * NUM


@given(st.integers(10, 5000), st.integers(0, 6000))
def test_integers_up_to_a_limit_are_described(limit: int, number: int) -> None:
    found = re.fullmatch(integers_up_to(limit), str(number)) is not None

    assert found == (1 <= number <= limit)


def is_taken(check: Callable[[str], object], text: str) -> bool:
    try:
        check(text)
    except InvalidNameError:
        return False
    return True


@given(st.integers(-1, 2 * MAX_VERSION).map(str) | st.text("0129"))
@example(str(MAX_VERSION))
@example(str(MAX_VERSION + 1))
@example("01")
def test_a_version_is_described_if_and_only_if_it_is_taken(text: str) -> None:
    assert accepts(VERSION, text) == is_taken(check_version, text)


@given(st.text("ab0.-_@", max_size=8))
def test_a_reference_is_described_if_and_only_if_it_is_taken(text: str) -> None:
    assert accepts(REFERENCE, text) == is_taken(TaskReference.parse, text)


@pytest.mark.parametrize("text", [LONGEST, f"{LONGEST}@{LONGEST}"])
def test_names_are_described_up_to_their_longest(text: str) -> None:
    assert accepts(REFERENCE, text)
    assert not accepts(REFERENCE, f"{text}a")
    assert not accepts(REFERENCE, f"a{text}")


@pytest.mark.parametrize(
    ("named", "needed"),
    [
        pytest.param([], Access(scope=Scope.ADMIN, spans_tasks=True), id="operators"),
        pytest.param([PUBLIC], None, id="public"),
        *(
            ([needs(scope, spans_tasks=all_tasks)], Access(scope=scope, spans_tasks=all_tasks))
            for scope in Scope
            for all_tasks in (False, True)
        ),
    ],
)
def test_a_route_asks_for_what_it_or_its_router_names(
    named: list[Any], needed: Access | None
) -> None:
    assert route_with(named).needed == needed
    assert route_with([], of_router=named).needed == needed


@pytest.mark.parametrize(
    "named", [[PUBLIC, needs(Scope.READ)], [needs(Scope.READ), PUBLIC], [Depends(other)]]
)
def test_a_route_that_names_no_single_scope_is_refused_when_it_is_defined(named: list[Any]) -> None:
    with pytest.raises(TypeError, match="expected one scope for a route"):
        route_with(named)


def test_a_route_of_another_class_lets_nobody_in() -> None:
    app = FastAPI()
    app.post("/", dependencies=[needs(Scope.READ)])(endpoint)

    with TestClient(app, raise_server_exceptions=False) as client:
        assert client.post("/").status_code == HTTPStatus.INTERNAL_SERVER_ERROR


def test_only_the_log_has_the_reason_of_the_store(caplog: pytest.LogCaptureFixture) -> None:
    reason = 'connection to server at "db.internal" failed for user "swordfish"'

    answer = problem_response({"type": "http", "headers": []}, StoreUnavailableError(reason))

    assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    assert b"swordfish" not in answer.body
    assert b"the server's log has the reason" in answer.body
    assert reason in caplog.text


@pytest.mark.parametrize("num_tasks", [0, 1, 50])
def test_a_version_in_memory_is_looked_at_once_however_many_tasks_are_listed(
    num_tasks: int,
) -> None:
    looks, branch = Counter[str](), embedding_branch(tiny_backbone(num_layers=1))
    manifests = [numbered(make_draft(it)[0], version=version) for it in "abc" for version in (1, 2)]
    resident = [
        watched(LoadedTask(manifest=it, branch=branch, num_bytes=0), looks) for it in manifests
    ]
    listed = [
        ListedTask(name=f"task-{it}", versions=(1,), aliases={}, manifest=manifests[0])
        for it in range(num_tasks)
    ]
    looks.clear()

    found = summaries_of(listed, resident)

    assert looks == {"manifest": len(resident)}
    assert not any(it["resident_versions"] for it in found)
