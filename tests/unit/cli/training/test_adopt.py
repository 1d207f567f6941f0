"""Laws of `nunatak adopt`: the options of `train`, and a teacher in place of labels."""

import json
import re
from pathlib import Path

import pytest

from doubles.backbones import save_tiny_backbone
from doubles.examples import rows_of, toy_examples, write_jsonl
from doubles.terminals import Ran, nunatak
from nunatak_contract.questions import TypedQuestion
from nunatak_server.decisions.collection import Collection

TEXTS = [{"text": it.text} for it in toy_examples(60, seed=4)]
UPSTREAM = ("--upstream", "http://x")
QUESTION = {"type": "noul", "instructions": "Is it late?"}


def adopted(folder: Path, *options: str) -> Ran:
    place = ("--registry", str(folder / "registry"), "--backbone", str(folder / "backbone"))
    texts = ("--texts", str(folder / "texts.jsonl"), "--max-length", "16")
    return nunatak("adopt", "small", *texts, *place, *options)


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a backbone, texts, and a registry with the full fine-tune `big`."""
    folder = tmp_path_factory.mktemp("adopt")
    save_tiny_backbone(folder / "backbone", num_layers=2)
    write_jsonl(folder / "texts.jsonl", TEXTS)
    data = write_jsonl(folder / "big.jsonl", rows_of(toy_examples(80, seed=3)))
    ran = nunatak(
        *("train", "--task", "big", "--data", str(data), "--method", "full", "--epochs", "3"),
        *("--registry", str(folder / "registry"), "--create", "--max-length", "16"),
        *("--backbone", str(folder / "backbone")),
    )
    assert ran.exit_code == 0, ran.stderr
    return folder


def test_a_task_of_the_registry_teaches_a_new_one(folder: Path) -> None:
    ran = adopted(folder, "--from", "big", "--layers", "1", "--promote", "prod", "--json")

    told = ran.json()
    assert (told["reference"], told["alias"]) == ("small/1", "prod")
    assert told["teacher"]["name"] == "big/1"
    assert told["teacher"]["num_texts"] == len(TEXTS)
    assert 0 <= told["teacher"]["agreement"]["value"] <= 1
    events = [json.loads(line) for line in ran.stderr.splitlines()]
    works = [it["work"] for it in events if it["event"] == "begin"]
    assert works == ["small (teacher)", "small (trunk)", "small (trunk)", "small"]
    assert [it["epoch"] for it in events if it["event"] == "step"] == [
        it["epoch"] for it in told["epochs"]
    ]


@pytest.mark.parametrize(
    ("options", "code", "problem"),
    [
        ((), "missing_column", "no column 'probabilities'"),
        (("--from", "nothing"), "task_not_found", "nothing"),
        (("--from", "big", *UPSTREAM, "--question", "q"), "invalid_option", "expect"),
        (UPSTREAM, "invalid_option", "an upstream and its question"),
        (("--question", "late"), "invalid_option", "an upstream and its question"),
        ((*UPSTREAM, "--question", "late"), "question_not_found", "late"),
        ((*UPSTREAM, "--question", "no.json"), "invalid_question_file", "no.json"),
        ((*UPSTREAM, "--question", "late.v2"), "question_not_found", "late.v2"),
        ((*UPSTREAM, "--question", "./late"), "invalid_question_file", "late"),
        (("--upstream-model", "m"), "invalid_option", "an upstream and its question"),
        (("--upstream", ""), "invalid_option", "an upstream and its question"),
        (("--from", "big", "--upstream", ""), "invalid_option", "expected a task"),
        (("--from", "big", "--kind", "multi-label"), "invalid_option", "a single-label task"),
        (("--from", "big", "--rank", "2"), "invalid_recipe", "rank belongs to method lora"),
    ],
)
def test_a_wrong_teacher_is_one_line_and_publishes_nothing(
    folder: Path, options: tuple[str, ...], code: str, problem: str
) -> None:
    adopted(folder, *options).assert_refused(code, problem)


def test_the_texts_that_a_server_collected_are_adopted_as_they_are(
    folder: Path, tmp_path: Path
) -> None:
    question = TypedQuestion.model_validate(QUESTION)
    collection = Collection(tmp_path / "collected", max_rows=100, max_days=1)
    collection.open()
    for place, row in enumerate(TEXTS):
        yes = 0.9 if place % 2 else 0.2
        collection.add(question, row["text"], {"no": 1 - yes, "yes": yes})
    (kept,) = collection.questions()

    ran = adopted(folder, "--texts", str(kept.file), "--method", "head", "--epochs", "1", "--json")

    told = ran.json()["teacher"]
    assert (told["name"], told["num_texts"]) == (kept.file.name, len(TEXTS))


@pytest.mark.parametrize("content", [QUESTION, {"question": QUESTION, "name": "a", "task": "b"}])
def test_a_file_holds_a_question_or_a_card(folder: Path, content: object, tmp_path: Path) -> None:
    (file := tmp_path / "late.json").write_text(json.dumps(content))

    ran = adopted(folder, "--upstream", "http://me:secret@host", "--question", str(file))

    assert "no user, query or fragment" in ran.stderr
    assert "secret" not in ran.stderr


def test_all_options_of_train_but_task_and_data_are_options_of_adopt() -> None:
    def options(command: str) -> set[str]:
        shown = nunatak(command, "--help").stdout
        return set(re.findall(r"(?<= )--[a-z-]+(?= )", shown))

    assert options("train") - options("adopt") == {"--task", "--data"}
    assert {"--texts", "--from", "--upstream", "--question"} <= options("adopt")
