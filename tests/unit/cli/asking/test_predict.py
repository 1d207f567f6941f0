"""Laws of `nunatak predict` against a server that gives canned answers."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from doubles.terminals import nunatak
from doubles.upstreams import FakeUpstream, Raw, running_upstream
from nunatak_cli.asking.predictors import open_inputs
from nunatak_contract.errors import NunatakError
from nunatak_rows import RowFormat

TONE: dict[str, JsonValue] = {
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


def by_length(body: dict[str, Any]) -> object:
    """Answer each text by its length, and refuse a NUL character."""
    texts = body["inputs"]
    if "\0" in texts:
        place = texts.index("\0")
        detail = f"input {place}: the text contains a NUL character; remove it"
        problem = {"code": "invalid_text", "status": 422, "detail": detail, "position": place}
        said = json.dumps(problem).encode()
        return Raw({"content-length": str(len(said))}, said, 422)
    labels = [f"{len(text)} characters" for text in texts]
    outputs = [[{"label": label, "score": 0.9}] for label in labels]
    return {"results": [{**TONE, "predicted": labels, "outputs": outputs}]}


@pytest.fixture
def server() -> Iterator[FakeUpstream]:
    with running_upstream(by_length, path="") as upstream:
        yield upstream


def says(server: FakeUpstream, *results: JsonValue) -> None:
    """Let the server answer everything with these results."""
    server.reply = lambda _: {"results": results}


def at(server: FakeUpstream) -> tuple[str, str]:
    return "--server", server.url


def test_server_is_asked_once_for_all_tasks(server: FakeUpstream) -> None:
    says(server, TONE)

    ran = nunatak("predict", "Come.", "--pair", "Why?", "--task", "tone", *at(server))

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
    server: FakeUpstream, predicted: list[JsonValue], answer: str, following: str
) -> None:
    says(server, {**TOPICS, "predicted": predicted})
    asked = ("predict", "Come.", "--task", "topics", *at(server))

    ran, written = nunatak(*asked), nunatak(*asked, "--json")

    assert " ".join(ran.stdout.splitlines()[1].split()) == f"topics 1 {answer} {following}"
    assert json.loads(written.stdout)["results"][0]["predicted"] == predicted


PLACE: dict[str, JsonValue] = {"score": 0.75, "word": "ann", "start": 0, "end": 3}
KINDS: list[tuple[str, JsonValue, str]] = [
    (
        "token_classification",
        [{"entity": "B-PER", **PLACE, "index": 1}, {"entity_group": "ORG", **PLACE}],
        "0.7500 ann [B-PER] ann [ORG] 0.7500",
    ),
    ("token_classification", [], "- nothing found"),
    (
        "question_answering",
        [
            {"answer": "ann", "score": 0.75, "start": 0, "end": 3},
            {"answer": "", "score": 0.25, "start": 0, "end": 0},
        ],
        "0.7500 ann (no answer) 0.2500",
    ),
    (
        "ranking",
        [{"index": 1, "score": 0.75, "document": "bob"}, {"index": 0, "score": 0.25}],
        "0.7500 bob document 0 0.2500",
    ),
]


@pytest.mark.parametrize(("head", "outputs", "shown"), KINDS)
def test_every_kind_is_shown_and_written_as_the_server_sent_it(
    server: FakeUpstream, head: str, outputs: JsonValue, shown: str
) -> None:
    answer: dict[str, JsonValue] = {"task": "t", "version": 3, "head": head, "outputs": outputs}
    says(server, {"reference": "t", **answer})
    asked = ("predict", "Come.", "--task", "t", *at(server))

    ran, written = nunatak(*asked), nunatak(*asked, "--json")

    assert " ".join(ran.stdout.splitlines()[1].split()) == f"t 3 {shown}"
    nothing = {"problem_type": None, "predicted": None}
    assert written.json() == {
        "results": [{"reference": "t", "version": 3, **nothing, "outputs": outputs}]
    }


def test_questions_documents_and_aggregation_are_sent(server: FakeUpstream) -> None:
    says(server, MISSING)
    rest = ("--task", "nope", *at(server))

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


@pytest.mark.parametrize(
    ("asked", "code", "says"),
    [
        (("Come.", "--pair", "Why?", "--question", "Who?"), "invalid_option", "--pair"),
        (("Come.", "--file", "-"), "invalid_option", "--file"),
        ((), "invalid_option", "--file"),
        (("-",), "invalid_option", "--file -"),
        (("Come.", "--text-column", "body"), "invalid_option", "or --file"),
        (("Come.", "--server", "http://x", "--backbone", "b"), "invalid_option", "--backbone"),
        (("Come.", "--server", "http://127.0.0.1:9"), "connection_failed", "127.0.0.1:9"),
        (("Come.", "--server", "localhost"), "invalid_input", "localhost"),
        (("--file", "-", "--format", "parquet"), "unreadable_file", "name a file FILE.parquet"),
    ],
)
def test_what_cannot_be_asked_is_one_line(asked: tuple[str, ...], code: str, says: str) -> None:
    nunatak("predict", "--task", "tone", *asked).assert_refused(code, says)


def test_task_that_fails_does_not_hide_the_others(server: FakeUpstream) -> None:
    says(server, MISSING, TONE)

    ran = nunatak("predict", "Come.", "--task", "nope", "--task", "tone", *at(server))

    assert ran.exit_code == 1
    assert "error [task_not_found]: no task 'nope'" in ran.stdout
    assert "urgent" in ran.stdout


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

    ran.assert_refused("missing_extra", "nunatak[training]")


@pytest.mark.parametrize("name", FILES)
def test_every_row_of_a_file_is_asked_about_in_order(
    server: FakeUpstream, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text(FILES[name])

    ran = nunatak("predict", "--file", str(tmp_path / name), "--task", "tone", *at(server))

    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    first = 2 if name in {"texts.csv", "texts.tsv"} else 1
    assert (ran.exit_code, ran.stderr) == (0, "")
    assert [line["place"] for line in lines] == [f"{name}:{first}", f"{name}:3"]
    assert [line["results"][0]["predicted"] for line in lines] == ["3 characters", "10 characters"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('{"text":', "not a JSON object"),
        ('{"text": 3}', "'text' must be a text"),
        ('{"text": "\\u0000"}', "the text contains a NUL character"),
    ],
)
def test_all_rows_before_a_row_that_has_no_answer_are_answered(
    server: FakeUpstream, tmp_path: Path, row: str, problem: str
) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"text": "a"}\n' * 20 + row + '\n{"text": "b"}')

    ran = nunatak("predict", "--file", str(file), "--task", "tone", *at(server))

    assert ran.exit_code == 1
    assert len(ran.stdout.splitlines()) == 20
    assert f"error [invalid_row]: x.jsonl:21: {problem}" in ran.stderr
