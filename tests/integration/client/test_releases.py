"""Clients and servers of two releases: the calls of each release, as it sent and answered them.

`WRITE_WIRE=1` with the first test writes the file of this release, in `tests/golden_wire`.
"""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Generator, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import JsonValue
from pydantic_core import to_jsonable_python

from doubles import wire_calls
from doubles.backbones import tiny_backbone
from doubles.serving import running_server
from doubles.tasks import publish_tiny_task
from doubles.wire_calls import CALLS, outcome
from nunatak_client import Client
from nunatak_contract.enums import HeadKind
from nunatak_registry import Registry

GOLDEN = Path(__file__).parents[2] / "golden_wire"
RELEASES = sorted(GOLDEN.glob("*.json"))
LAST = os.environ.get("NUNATAK_LAST_WHEEL", "")
HEADERS = ("accept", "content-type", "retry-after")
"""Kept, and so are the headers whose names begin with `x-`."""
SAME = ("alias", "code", "label", "reference", "role", "task")
"""Names whose values are equal in every release; others have values of one kind."""


@pytest.fixture
def address(tmp_path: Path) -> Generator[str]:
    """A server of today, with the tasks that the calls name."""
    backbone = tiny_backbone()
    with Registry.open(tmp_path) as registry:
        for seed in (1, 2):
            publish_tiny_task(registry, backbone, seed=seed)
        registry.promote("tone", "prod", 1)
        for task, kind, labels in (
            ("names", HeadKind.TOKEN_CLASSIFICATION, ("I-X", "I-Y")),
            ("answers", HeadKind.QUESTION_ANSWERING, ()),
            ("ranks", HeadKind.RANKING, ()),
        ):
            publish_tiny_task(registry, backbone, task=task, kind=kind, labels=labels)
        with running_server(backbone, registry) as found:
            yield found


def described(request: httpx.Request) -> dict[str, Any]:
    return {
        "method": request.method,
        "path": request.url.raw_path.decode(),
        "headers": kept(request.headers),
        "body": json.loads(request.content) if request.content else None,
    }


def kept(headers: httpx.Headers) -> dict[str, str]:
    return {name: it for name, it in headers.items() if name in HEADERS or name.startswith("x-")}


class Recorder(httpx.HTTPTransport):
    """Sends requests, and keeps them with their answers."""

    def __init__(self) -> None:
        super().__init__()
        self.exchanges: list[dict[str, Any]] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        text = response.read().decode()
        headers = kept(response.headers)
        answer = {"status": response.status_code, "headers": headers, "text": text}
        self.exchanges.append({"request": described(request), "answer": answer})
        return httpx.Response(response.status_code, headers=headers, text=text)


def recorded(address: str) -> dict[str, Any]:
    """Make every call to a server, and return what went over the wire and what came out."""
    made = dict[str, Any]()
    for name, call in CALLS.items():
        with Recorder() as wire, Client(address, transport=wire, retries=0) as client:
            result, code = outcome(call, client)
            made[name] = {"exchanges": wire.exchanges, "result": jsonable(result), "code": code}
    return made


def jsonable(result: object) -> Any:  # noqa: ANN401 - any JSON
    return json.loads(json.dumps(to_jsonable_python(result)))


def lost(old: JsonValue, new: JsonValue, *, exactly: bool, place: str) -> list[str]:
    """Return the places of an old value that a new value has no more; it may have further ones."""
    pairs: Iterable[tuple[str | int, JsonValue, JsonValue]]
    if isinstance(old, dict) and isinstance(new, dict):
        pairs = ((name, it, new.get(name)) for name, it in old.items())
    elif isinstance(old, list) and isinstance(new, list) and len(old) <= len(new):
        pairs = ((number, it, new[number]) for number, it in enumerate(old))
    else:
        is_kept = old is None or (old == new if exactly else kind(old) == kind(new))
        return [] if is_kept else [f"{place}: {old!r} became {new!r}"]
    return [
        found
        for name, one, other in pairs
        for found in lost(one, other, exactly=exactly or name in SAME, place=f"{place}.{name}")
    ]


def kind(value: JsonValue) -> type | int:
    if isinstance(value, list):
        return len(value)
    return float if type(value) is int else type(value)


def documents(answer: dict[str, Any]) -> list[Any]:
    read = [json.loads(it) for it in answer["text"].splitlines()]
    # The results of a stream come in any order.
    return sorted(read, key=lambda it: str(it.get("reference"))) if len(read) > 1 else read


@pytest.mark.parametrize("file", RELEASES, ids=lambda it: it.stem)
def test_todays_server_answers_a_releases_requests_with_all_that_its_client_reads(
    file: Path, address: str
) -> None:
    with httpx.Client(base_url=address, timeout=60) as http:
        for name, call in json.loads(file.read_text()).items():
            for exchange in call["exchanges"]:
                asked, answered = exchange["request"], exchange["answer"]
                content = json.dumps(asked["body"]) if asked["body"] is not None else None
                found = http.request(
                    asked["method"], asked["path"], content=content, headers=asked["headers"]
                )
                assert found.status_code == answered["status"], (name, found.text)
                assert answered["headers"].keys() <= found.headers.keys(), name
                assert found.headers["content-type"] == answered["headers"]["content-type"], name
                new = documents({"text": found.text})
                assert lost(documents(answered), new, exactly=False, place=name) == []


@pytest.mark.parametrize("file", RELEASES, ids=lambda it: it.stem)
def test_todays_client_asks_as_a_release_did_and_reads_its_answers(file: Path) -> None:
    for name, call in json.loads(file.read_text()).items():
        coming = iter(call["exchanges"])

        def replayed(request: httpx.Request, coming: Any = coming, name: str = name) -> Any:  # noqa: ANN401
            exchange = next(coming)
            assert described(request) == exchange["request"], name
            answer = exchange["answer"]
            return httpx.Response(answer["status"], headers=answer["headers"], text=answer["text"])

        transport = httpx.MockTransport(replayed)
        with Client("http://127.0.0.1:9", transport=transport, retries=0) as client:
            result, code = outcome(CALLS[name], client)

        assert code == call["code"], name
        assert lost(call["result"], jsonable(result), exactly=True, place=name) == []
        assert next(coming, None) is None, name


def test_this_release_has_its_record_of_every_call(request: pytest.FixtureRequest) -> None:
    file = GOLDEN / f"{version('nunatak')}.json"
    if os.environ.get("WRITE_WIRE"):
        address: str = request.getfixturevalue("address")
        lines = (f"{json.dumps(it)}: {json.dumps(made)}" for it, made in recorded(address).items())
        file.write_text("{\n" + ",\n".join(lines) + "\n}\n")

    assert file.is_file()
    assert json.loads(file.read_text()).keys() == CALLS.keys()


@pytest.mark.skipif(not LAST, reason="NUNATAK_LAST_WHEEL names no wheel of the last release")
def test_the_client_in_the_last_releases_wheel_asks_todays_server(
    tmp_path: Path, address: str
) -> None:
    with zipfile.ZipFile(LAST) as wheel:
        wheel.extractall(tmp_path / "wheel")
    program = f"import nunatak_client; print(nunatak_client.__file__)\n{program_text()}"

    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program, address],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "wheel")},
        capture_output=True,
        text=True,
        check=True,
    )

    place, written = done.stdout.splitlines()
    assert Path(place).is_relative_to(tmp_path)
    wanted = json.loads((GOLDEN / f"{version('nunatak')}.json").read_text())
    assert json.loads(written) == {name: it["code"] for name, it in wanted.items()}


def program_text() -> str:
    return Path(wire_calls.__file__).read_text()
