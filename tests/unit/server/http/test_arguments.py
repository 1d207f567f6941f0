"""Reading the arguments of endpoints, with the framework's own way as the oracle."""

import json
import threading
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import pytest
from fastapi import BackgroundTasks, Cookie, Depends, FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute, APIRouter
from fastapi.testclient import TestClient
from pydantic import field_validator

from nunatak_contract.requests import Message
from nunatak_server.http.endpoints import ABSENT, MAX_BYTES_ON_LOOP, ParsedBody, handler_of
from nunatak_server.scheduler.rows import Priority


class QuickRoute(APIRoute):
    """Reads arguments only in one pass."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = handler_of(self)

        async def handle_parsed(request: Request) -> Response:
            body = await request.body()
            value = json.loads(body) if body else ABSENT
            return await handle(request, ParsedBody(len(body), value))

        return handle_parsed


class Asked(Message):
    inputs: str
    top_k: int | None = None


async def handling_of(
    request: Request,
    deadline_ms: Annotated[int | None, Header(alias="x-deadline-ms", ge=1)] = None,
    priority: Annotated[Priority, Header(alias="x-priority")] = Priority.NORMAL,
) -> tuple[str, int | None, Priority]:
    return request.method, deadline_ms, priority


async def ask(
    request: Request,
    handling: Annotated[tuple[str, int | None, Priority], Depends(handling_of)],
    task: str,
    body: Asked,
    version: Annotated[int | None, Query(ge=1)] = None,
    accept: Annotated[str | None, Header()] = None,
) -> Response:
    values = [task, body.model_dump(), version, *handling, accept]
    return JSONResponse([request.method, *values])


async def may_ask(
    task: str, wanted: Annotated[str, Query()], body: Asked | None = None
) -> Response:
    return JSONResponse([task, wanted, body.model_dump() if body else None])


def client_of(route_class: type[APIRoute]) -> TestClient:
    router = APIRouter(route_class=route_class)
    router.post("/must/{task}")(ask)
    router.post("/may/{task}")(may_ask)
    app = FastAPI(routes=router.routes)

    async def tell(_: Request, error: Exception) -> Response:
        found: list[dict[str, Any]] = (
            list(error.errors()) if isinstance(error, RequestValidationError) else []
        )
        return JSONResponse([[list(it["loc"]), it["msg"]] for it in found], status_code=422)

    app.add_exception_handler(RequestValidationError, tell)
    return TestClient(app)


JSON = {"content-type": "application/json"}
BODY = b'{"inputs": "x", "top_k": 2}'
REQUESTS: dict[str, tuple[str, bytes, dict[str, str]]] = {
    "all that may be sent": (
        "/must/a?version=3",
        BODY,
        {"x-deadline-ms": "5", "x-priority": "high"},
    ),
    "only what must be sent": ("/must/a", b'{"inputs": "x"}', {}),
    "a header in other letters": ("/must/a", BODY, {"X-DEADLINE-MS": "7"}),
    "a name that is quoted": ("/must/a%40b%20c", BODY, {}),
    "a parameter twice": ("/must/a?version=3&version=4", BODY, {}),
    "an empty parameter": ("/must/a?version=", BODY, {}),
    "an empty header": ("/must/a", BODY, {"x-deadline-ms": ""}),
    "what nobody declared": ("/must/a?other=1", BODY, {"x-other": "1"}),
    "a number that is none": ("/must/a?version=x", BODY, {"x-deadline-ms": "soon"}),
    "a number out of range": ("/must/a?version=0", BODY, {"x-deadline-ms": "0"}),
    "a choice there is not": ("/must/a", BODY, {"x-priority": "urgent"}),
    "a body of another shape": ("/must/a", b'{"inputs": 1, "other": 2}', {}),
    "faults in all places": ("/must/a?version=x", b"[]", {"x-deadline-ms": "x"}),
    "a body that is null": ("/must/a", b"null", {}),
    "no body": ("/must/a", b"", {}),
    "no body where none must be": ("/may/a?wanted=1", b"", {}),
    "null where no body must be": ("/may/a?wanted=1", b"null", {}),
    "a parameter left out": ("/may/a", BODY, {}),
    "a header twice": ("/must/a", BODY, {"x-deadline-ms": "5", "X-Deadline-Ms": "6"}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_arguments_and_faults_are_those_that_the_framework_finds(name: str) -> None:
    path, body, headers = REQUESTS[name]
    sent = [*JSON.items(), *headers.items()]

    ours = client_of(QuickRoute).post(path, content=body, headers=sent)
    theirs = client_of(APIRoute).post(path, content=body, headers=sent)

    assert (ours.status_code, ours.json()) == (theirs.status_code, theirs.json())


async def with_a_cookie(session: Annotated[str | None, Cookie()] = None) -> Response:
    return JSONResponse([session])


async def with_later_work(tasks: BackgroundTasks) -> Response:
    return JSONResponse([len(tasks.tasks)])


async def with_a_dependency(found: Annotated[str, Depends(with_a_cookie)]) -> Response:
    return JSONResponse([found])


@pytest.mark.parametrize("endpoint", [with_a_cookie, with_later_work, with_a_dependency])
def test_an_endpoint_with_an_argument_that_nothing_reads_is_refused_when_it_is_defined(
    endpoint: Callable[..., Any],
) -> None:
    with pytest.raises(TypeError, match="arguments that nothing reads"):
        handler_of(APIRoute("/", endpoint))


class Watched(Message):
    text: str

    @field_validator("text")
    @classmethod
    def _tells_its_thread(cls, text: str) -> str:
        return f"{text[:1]}{threading.get_ident()}"


async def watch(request: Request, body: Watched) -> Response:
    return JSONResponse([request.method, body.text[1:] == str(threading.get_ident())])


@pytest.mark.parametrize(("num_chars", "is_on_loop"), [(10, True), (MAX_BYTES_ON_LOOP, False)])
def test_a_large_body_is_checked_on_a_thread(num_chars: int, *, is_on_loop: bool) -> None:
    router = APIRouter(route_class=QuickRoute)
    router.post("/watch")(watch)

    with TestClient(FastAPI(routes=router.routes)) as client:
        answer = client.post("/watch", json={"text": "x" * num_chars})

    assert answer.json() == ["POST", is_on_loop]
