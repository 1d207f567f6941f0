"""Laws of `nunatak predict` against a server that gives canned answers."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from pydantic import JsonValue

from doubles.terminals import nunatak

TONE: JsonValue = {
    "reference": "tone",
    "task": "tone",
    "version": 3,
    "outputs": [{"label": "urgent", "score": 0.93}, {"label": "calm", "score": 0.07}],
}
MISSING: JsonValue = {
    "reference": "nope",
    "error": {"code": "task_not_found", "status": 404, "detail": "no task 'nope'"},
}


@dataclass
class CannedServer:
    """Answers each POST with `answer` and remembers the requests."""

    url: str = ""
    answer: JsonValue = None
    bodies: list[JsonValue] = field(default_factory=list[JsonValue])


@pytest.fixture
def server() -> Iterator[CannedServer]:
    canned = CannedServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            canned.bodies.append(json.loads(self.rfile.read(length)))
            answer = json.dumps(canned.answer).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        canned.url = f"http://127.0.0.1:{listener.server_port}"
        thread = Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        yield canned
        listener.shutdown()
        thread.join()


def test_server_is_asked_once_for_all_tasks(server: CannedServer) -> None:
    server.answer = {"results": [TONE]}

    ran = nunatak("predict", "Come.", "--pair", "Why?", "--task", "tone", "--server", server.url)

    assert ran.exit_code == 0
    assert server.bodies == [{"inputs": {"text": "Come.", "text_pair": "Why?"}, "tasks": ["tone"]}]
    assert ran.stdout.splitlines()[1].split() == ["tone", "3", "0.9300", "urgent", "calm", "0.0700"]


def test_answers_as_json_have_the_shape_of_the_server(server: CannedServer) -> None:
    server.answer = {"results": [TONE]}

    ran = nunatak("predict", "Come.", "--task", "tone", "--server", server.url, "--json")

    assert ran.json() == {
        "results": [
            {
                "reference": "tone",
                "version": 3,
                "outputs": [{"label": "urgent", "score": 0.93}, {"label": "calm", "score": 0.07}],
            }
        ]
    }


PLACE: dict[str, JsonValue] = {"score": 0.75, "word": "ann", "start": 0, "end": 3}
KINDS: dict[str, tuple[JsonValue, str]] = {
    "token_classification": (
        [{"entity": "B-PER", **PLACE, "index": 1}, {"entity_group": "ORG", **PLACE}],
        "0.7500 ann [B-PER] ann [ORG] 0.7500",
    ),
    "question_answering": (
        [
            {"answer": "ann", "score": 0.75, "start": 0, "end": 3},
            {"answer": "", "score": 0.25, "start": 0, "end": 0},
        ],
        "0.7500 ann (no answer) 0.2500",
    ),
    "ranking": (
        [{"index": 1, "score": 0.75, "document": "bob"}, {"index": 0, "score": 0.25}],
        "0.7500 bob document 0 0.2500",
    ),
}


@pytest.mark.parametrize("head", KINDS)
def test_every_kind_is_shown_and_written_as_the_server_sent_it(
    server: CannedServer, head: str
) -> None:
    outputs, shown = KINDS[head]
    answer: JsonValue = {"task": "t", "version": 3, "head": head, "outputs": outputs}
    server.answer = {"results": [{"reference": "t", **answer}]}

    ran = nunatak("predict", "Come.", "--task", "t", "--server", server.url)
    written = nunatak("predict", "Come.", "--task", "t", "--server", server.url, "--json")

    assert " ".join(ran.stdout.splitlines()[1].split()) == f"t 3 {shown}"
    assert written.json() == {"results": [{"reference": "t", "version": 3, "outputs": outputs}]}


def test_a_text_without_entities_is_shown_as_such(server: CannedServer) -> None:
    answer: JsonValue = {"task": "t", "version": 3, "head": "token_classification", "outputs": []}
    server.answer = {"results": [{"reference": "t", **answer}]}

    ran = nunatak("predict", "Come.", "--task", "t", "--server", server.url)

    assert "nothing found" in ran.stdout


def test_questions_documents_and_aggregation_are_sent(server: CannedServer) -> None:
    server.answer = {"results": [MISSING]}
    rest = ("--task", "nope", "--server", server.url)

    nunatak("predict", "Ann came.", "--question", "Who?", *rest)
    nunatak("predict", "Who?", "--document", "Ann", "--document", "Bob", *rest)
    nunatak("predict", "Ann came.", "--aggregation", "simple", *rest)

    assert server.bodies == [
        {"inputs": {"question": "Who?", "context": "Ann came."}, "tasks": ["nope"]},
        {
            "inputs": {"query": "Who?", "documents": ["Ann", "Bob"]},
            "tasks": ["nope"],
            "parameters": {"return_documents": True},
        },
        {
            "inputs": "Ann came.",
            "tasks": ["nope"],
            "parameters": {"aggregation_strategy": "simple"},
        },
    ]


def test_two_kinds_of_input_at_once_are_one_line() -> None:
    ran = nunatak("predict", "Come.", "--task", "tone", "--pair", "Why?", "--question", "Who?")

    assert ran.exit_code != 0
    assert ran.stderr.startswith("error [invalid_option]: ")


def test_task_that_fails_does_not_hide_the_others(server: CannedServer) -> None:
    server.answer = {"results": [MISSING, TONE]}

    ran = nunatak(
        *("predict", "Come.", "--task", "nope", "--task", "tone"), *("--server", server.url)
    )

    assert ran.exit_code == 1
    assert "error [task_not_found]: no task 'nope'" in ran.stdout
    assert "urgent" in ran.stdout


def test_server_that_is_not_there_is_one_line() -> None:
    ran = nunatak("predict", "Come.", "--task", "tone", "--server", "http://127.0.0.1:9")

    assert ran.exit_code == 1
    assert ran.stderr.startswith("error [connection_failed]: ")
    assert ran.stderr.count("\n") == 1


def test_address_that_is_no_url_is_one_line() -> None:
    ran = nunatak("predict", "Come.", "--task", "tone", "--server", "localhost")

    assert ran.stderr.startswith("error [invalid_input]: ")


def test_registry_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    ran = nunatak("predict", "Come.", "--task", "tone", "--registry", str(tmp_path / "tpyo"))

    assert ran.stderr.startswith("error [registry_missing]: ")


def test_task_is_required() -> None:
    assert nunatak("predict", "Come.").exit_code == 2
