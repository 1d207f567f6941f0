"""Laws of `nunatak predict` against a server that gives canned answers."""

# pyarrow ships no types.

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from pydantic import JsonValue

from doubles.terminals import nunatak
from nunatak_cli.asking.predictors import open_inputs
from nunatak_contract.errors import NunatakError
from nunatak_rows import RowFormat

TONE: JsonValue = {
    "reference": "tone",
    "task": "tone",
    "version": 3,
    "problem_type": "single_label_classification",
    "predicted": "urgent",
    "outputs": [{"label": "urgent", "score": 0.93}, {"label": "calm", "score": 0.07}],
}
TOPICS: dict[str, JsonValue] = {
    "reference": "topics",
    "task": "topics",
    "version": 1,
    "problem_type": "multi_label_classification",
    "outputs": [
        {"label": "money", "score": 0.9},
        {"label": "law", "score": 0.6},
        {"label": "sport", "score": 0.5},
        {"label": "art", "score": 0.4},
    ],
}
MISSING: JsonValue = {
    "reference": "nope",
    "error": {"code": "task_not_found", "status": 404, "detail": "no task 'nope'"},
}


REFUSAL: JsonValue = {"code": "too_many_inputs", "status": 422, "detail": "too many"}


def tone_of(texts: list[JsonValue]) -> JsonValue:
    """Answer each text by its length."""
    labels = [f"{len(text)} characters" for text in map(str, texts)]
    told: dict[str, JsonValue] = {
        "predicted": list[JsonValue](labels),
        "outputs": [[{"label": label, "score": 0.9}] for label in labels],
    }
    assert isinstance(TONE, dict)
    return {"results": [{**TONE, **told}]}


@dataclass
class CannedServer:
    """Answers each POST with `answer` and remembers the requests."""

    url: str = ""
    answer: JsonValue = None
    max_inputs: int = 64
    """Of lists, which are answered text by text."""
    bodies: list[JsonValue] = field(default_factory=list[JsonValue])

    def reply(self, body: dict[str, JsonValue]) -> tuple[int, JsonValue]:
        self.bodies.append(body)
        match body["inputs"]:
            case list() as texts if len(texts) > self.max_inputs:
                return 422, REFUSAL
            case list() as texts if "\0" in texts:
                place = texts.index("\0")
                detail = f"input {place}: the text contains a NUL character; remove it"
                problem: JsonValue = {"code": "invalid_text", "status": 422, "detail": detail}
                return 422, {**problem, "position": place}  # pyrefly: ignore[invalid-argument]
            case list() as texts:
                return 200, tone_of(texts)
            case _:
                return 200, self.answer


@pytest.fixture
def server() -> Iterator[CannedServer]:
    canned = CannedServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            status, reply = canned.reply(json.loads(self.rfile.read(length)))
            answer = json.dumps(reply).encode()
            self.send_response(status)
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


@pytest.mark.parametrize(
    ("predicted", "answer", "following"),
    [
        (["money", "law", "art"], "0.9000 money, law, art", "sport 0.5000"),
        (["money"], "0.9000 money", "law 0.6000, sport 0.5000"),
        ([], "- nothing found", "money 0.9000, law 0.6000"),
    ],
)
def test_all_labels_that_apply_are_the_answer(
    server: CannedServer, predicted: list[JsonValue], answer: str, following: str
) -> None:
    server.answer = {"results": [{**TOPICS, "predicted": predicted}]}
    asked = ("predict", "Come.", "--task", "topics", "--server", server.url)

    ran, written = nunatak(*asked), nunatak(*asked, "--json")

    assert " ".join(ran.stdout.splitlines()[1].split()) == f"topics 1 {answer} {following}"
    assert json.loads(written.stdout)["results"][0]["predicted"] == predicted


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
    server.answer = {"results": [{"reference": "t", **answer}]}  # pyrefly: ignore[invalid-argument]

    ran = nunatak("predict", "Come.", "--task", "t", "--server", server.url)
    written = nunatak("predict", "Come.", "--task", "t", "--server", server.url, "--json")

    assert " ".join(ran.stdout.splitlines()[1].split()) == f"t 3 {shown}"
    nothing = {"problem_type": None, "predicted": None}
    assert written.json() == {
        "results": [{"reference": "t", "version": 3, **nothing, "outputs": outputs}]
    }


def test_a_text_without_entities_is_shown_as_such(server: CannedServer) -> None:
    answer: JsonValue = {"task": "t", "version": 3, "head": "token_classification", "outputs": []}
    server.answer = {"results": [{"reference": "t", **answer}]}  # pyrefly: ignore[invalid-argument]

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


FILES = {
    "texts.txt": "one\n\nthree more\n",
    "texts.jsonl": '{"text": "one", "label": "x"}\n\n{"text": "three more"}\n',
    "texts.csv": 'label,text\nx,one\nx,"three more"\n',
    "texts.tsv": "text\tlabel\none\tx\nthree more\tx\n",
}


def test_a_standard_input_that_is_closed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)

    with pytest.raises(NunatakError, match=r"^standard input: it is closed"):
        open_inputs("-", None, RowFormat())


def test_parquet_without_the_extra_names_the_extra_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    ran = nunatak("predict", "--file", str(tmp_path / "texts.parquet"), "--task", "tone")

    assert ran.exit_code == 1
    assert ran.stderr.startswith("error [missing_extra]: ")
    assert "nunatak[training]" in ran.stderr


def test_a_parquet_file_cannot_come_from_standard_input(server: CannedServer) -> None:
    ran = nunatak("predict", "--file", "-", "--format", "parquet", "--task", "tone", *at(server))

    assert ran.stderr.startswith("error [unreadable_file]: ")
    assert "name a file FILE.parquet" in ran.stderr


@pytest.mark.parametrize("name", FILES)
def test_every_row_of_a_file_is_asked_about_in_order(
    server: CannedServer, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text(FILES[name])

    ran = nunatak("predict", "--file", str(tmp_path / name), "--task", "tone", *at(server))

    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    first = 2 if name in {"texts.csv", "texts.tsv"} else 1
    assert (ran.exit_code, ran.stderr) == (0, "")
    assert [line["place"] for line in lines] == [f"{name}:{first}", f"{name}:3"]
    assert [line["results"][0]["predicted"] for line in lines] == ["3 characters", "10 characters"]


def test_a_long_file_is_divided_into_requests_that_the_server_accepts(server: CannedServer) -> None:
    server.max_inputs = 7
    texts = ["x" * (1 + number % 50) for number in range(100)]

    ran = nunatak("predict", "--file", "-", "--task", "tone", *at(server), typed="\n".join(texts))

    found = [json.loads(line)["results"][0]["predicted"] for line in ran.stdout.splitlines()]
    assert found == [f"{len(text)} characters" for text in texts]
    asked = [body["inputs"] for body in server.bodies if isinstance(body, dict)]
    assert sum(len(it) > 7 for it in asked if isinstance(it, list)) <= 4


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('{"text":', "not a JSON object"),
        ('{"text": "\\u0000"}', "the text contains a NUL character"),
    ],
)
def test_all_rows_before_a_row_that_has_no_answer_are_answered(
    server: CannedServer, tmp_path: Path, row: str, problem: str
) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"text": "a"}\n' * 20 + row + '\n{"text": "b"}')

    ran = nunatak("predict", "--file", str(file), "--task", "tone", *at(server))

    assert ran.exit_code == 1
    assert len(ran.stdout.splitlines()) == 20
    assert f"error [invalid_row]: x.jsonl:21: {problem}" in ran.stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("x.jsonl", '{"text": "a"}\n{', "x.jsonl:2: not a JSON object", id="no-json"),
        pytest.param("x.jsonl", '{"text": 3}', "x.jsonl:1: 'text' must be a text", id="no-text"),
        pytest.param("x.xml", "<a/>", "the suffix tells no format", id="format"),
    ],
)
def test_a_file_of_another_form_is_refused_with_its_line(
    server: CannedServer, tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)

    ran = nunatak("predict", "--file", str(tmp_path / name), "--task", "tone", *at(server))

    assert ran.exit_code == 1
    assert ran.stderr.startswith(("error [invalid_row]: ", "error [unreadable_file]: "))
    assert message in ran.stderr


def test_a_text_and_a_file_exclude_each_other() -> None:
    both = nunatak("predict", "Come.", "--file", "-", "--task", "tone")
    neither = nunatak("predict", "--task", "tone")

    assert both.stderr.startswith("error [invalid_option]: ")
    assert neither.stderr.startswith("error [invalid_option]: ")


def at(server: CannedServer) -> tuple[str, str]:
    return "--server", server.url
