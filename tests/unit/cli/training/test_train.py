"""Laws of the options of `nunatak train`, `adopt`, `multitask` and `cache`."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch

from doubles.backbones import save_tiny_backbone, tiny_backbone
from doubles.examples import rows_of, toy_examples, write_jsonl
from doubles.tasks import publish_tiny_task
from doubles.terminals import Ran, nunatak
from nunatak_cli.options import ComputeOptions, TextColumns
from nunatak_contract.questions import TypedQuestion
from nunatak_model import Encoding, load_backbone
from nunatak_registry import Registry
from nunatak_server.decisions.collection import Collection
from nunatak_training.kinds import TaskKind
from nunatak_training.report import Report
from nunatak_training.run_settings import all_settings
from nunatak_training.trunk import DiskTrunkStore

GOOD = rows_of(toy_examples(12))


def trained(folder: Path, *options: str) -> Ran:
    save_tiny_backbone(folder / "backbone", num_layers=2)
    place = ("--registry", str(folder / "registry"), "--backbone", str(folder / "backbone"))
    return nunatak("train", "--task", "tone", "--max-length", "16", "--create", *place, *options)


def assert_publishes_nothing(ran: Ran, folder: Path, code: str, *words: str) -> None:
    ran.assert_refused(code, *words)
    with Registry.open(str(folder / "registry")) as registry:
        assert registry.tasks() == []


TRAIN = "train --task tone --data a.jsonl --registry registry"
MULTITASK = "multitask shared --data tone=a.jsonl"


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (f"{TRAIN} --set epochs", "--set expects NAME=VALUE, got 'epochs'"),
        (f"{TRAIN} --set seed=1 --set seed=2", "--set names 'seed' twice"),
        (f"{TRAIN} --learning-rate 1 --set learning_rate=1", "--learning-rate and --set"),
        (f"{TRAIN} --epochs 0", "epochs: expected at least 1"),
        (f"{TRAIN} --kind poem", "kind must be one of single-label, multi-label"),
        (f"{TRAIN} --set thresholds=f1", "thresholds 'f1' needs calibrate true"),
        (f"{TRAIN} --calibrate --set thresholds=f2", "thresholds: expected 'f1'"),
        ("multitask shared --data tone", "--data expects NAME=VALUE, got 'tone'"),
        (f"{MULTITASK} --data tone=b", "--data names 'tone' twice"),
        (f"{MULTITASK} --kind tone=poem", "kind must be one of"),
        (f"{MULTITASK} --kind mood=ranking", "one of tone before =, got 'mood'"),
        (f"{MULTITASK} --data mood=b --kind tone=poem", "b: no such file"),
        (f"{TRAIN} --dev .", ": is a folder; name one file in it"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").touch()

    ran = nunatak(*command.split())

    assert (ran.exit_code, ran.stderr.count("\n")) == (1, 1)
    assert problem in ran.stderr
    assert [it.name for it in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("train", "--task", "tone", "--data", "{folder}/x.jsonl"), "data_not_found"),
        (("train", "--task", "tone", "--data", "{folder}"), "data_not_found"),
        (("train", "--task", "tone", "--data", "{folder}/x.xlsx"), "unreadable_file"),
        (
            ("train", "--task", "tone", "--data", "{rows}", "--dev", "{folder}/x.csv"),
            "data_not_found",
        ),
        (("adopt", "tone", "--texts", "{folder}/x.jsonl"), "data_not_found"),
    ],
)
def test_a_file_that_cannot_be_examples_is_refused_before_seconds_of_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], code: str
) -> None:
    monkeypatch.setitem(sys.modules, "nunatak_training.train", None)
    (tmp_path / "x.xlsx").touch()
    rows = tmp_path / "rows.jsonl"
    rows.touch()

    ran = nunatak(*(it.format(folder=tmp_path, rows=rows) for it in command))

    ran.assert_refused(code)


def test_help_lists_every_setting_with_what_it_may_be() -> None:
    shown = nunatak("train", "--help").stdout
    rows = {line.split()[0]: line for line in shown.splitlines() if line.strip()}

    assert {setting.name for setting in all_settings()} <= rows.keys()
    assert all(kind in shown for kind in TaskKind)
    assert "adamw | adam | sgd" in rows["optimizer"]
    assert "8" in rows["rank"]
    assert "most tokens that are read of a text" in rows["max_length"]


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--data", "broken.jsonl"), "missing_column", "broken.jsonl"),
        (("--data", "broken.jsonl", "--promote", "../prod"), "invalid_name", "../prod"),
        (("--data", "broken.jsonl", "--device", "cuda"), "invalid_option", "--device cpu"),
        *(
            (("--data", "broken.jsonl", "--delimiter", it), "invalid_option", "expects one char")
            for it in ("", "::", "\n", '"')
        ),
    ],
)
def test_wrong_data_and_options_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], code: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    Path("broken.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")

    ran = nunatak("train", "--task", "tone", *options, "--registry", "registry", "--create")

    ran.assert_refused(code, says)
    # Options are checked before anything is made, and data after the registry is.
    assert (tmp_path / "registry").exists() == (code == "missing_column")


@pytest.mark.parametrize(("given", "expected"), [(3, 3), (None, 1)])
def test_so_many_threads_compute_as_were_named_or_are_free(
    monkeypatch: pytest.MonkeyPatch, given: int | None, expected: int
) -> None:
    chosen = list[int]()
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))

    ComputeOptions(threads=given).prepare()

    assert chosen == [expected]


@pytest.mark.parametrize("delimiter", ["tab", "\\t", "\t"])
def test_a_tab_has_a_name(delimiter: str) -> None:
    assert TextColumns(delimiter=delimiter).spelt.delimiter == "\t"


def test_strict_shows_the_warnings_and_trains_nothing(tmp_path: Path) -> None:
    rows = [{"body": it.text, "class": f"{it.label} "} for it in toy_examples(40)]
    data = tmp_path / "toy.csv"
    lines = ["body;class", *(f"{row['body']};{row['class']}" for row in rows)]
    data.write_text("\n".join(lines), encoding="utf-8")

    ran = nunatak(
        *("train", "--task", "tone", "--data", str(data), "--method", "head", "--strict"),
        *("--text-column", "body", "--label-column", "class"),
        *("--registry", str(tmp_path / "registry"), "--create"),
    )

    assert ran.exit_code == 1
    assert "warnings about the data of tone" in ran.stderr
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("error [suspicious_data]: toy.csv: white space around labels: 2 labels")
    assert last.endswith("Correct the examples, or train without strict")


def test_a_label_of_control_characters_is_refused_before_training(tmp_path: Path) -> None:
    rows = [{**row, "label": f"{row['label']}\x1b[31m"} for row in GOOD]
    data = write_jsonl(tmp_path / "train.jsonl", rows)

    ran = trained(tmp_path, "--data", str(data))

    assert_publishes_nothing(
        ran, tmp_path, "unpublishable", "head.labels.0", r"got 'early\x1b[31m'"
    )


def test_a_loss_that_stops_being_a_number_leaves_no_version_and_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUNATAK_CACHE", str(tmp_path / "cache"))
    data = write_jsonl(tmp_path / "train.jsonl", GOOD)

    # Updates so large that their products are NaN.
    ran = trained(tmp_path, "--data", str(data), "--method", "lora", "--set", "alpha=1e38")

    assert_publishes_nothing(ran, tmp_path, "training_diverged", "step", "lower the learning rate")
    assert not list((tmp_path / "cache" / "checkpoints").glob("*.safetensors"))


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_backbone_that_no_other_task_has_is_told_before_the_training(
    tmp_path: Path, *, is_shared: bool
) -> None:
    data = write_jsonl(tmp_path / "train.jsonl", GOOD)
    own = tmp_path / ("backbone" if is_shared else "first")
    base = load_backbone(save_tiny_backbone(own, num_layers=2, seed=int(not is_shared)))
    with Registry.open(str(tmp_path / "registry")) as registry:
        publish_tiny_task(registry, base, task="mood")

    ran = trained(tmp_path, "--data", str(data), "--set", "alpha=1e38", "--method", "lora")

    told = "warning: the tasks of this registry run on first; a task on backbone shares nothing"
    assert (told in ran.stderr) is not is_shared


def test_what_is_kept_is_shown_until_it_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUNATAK_CACHE", str(tmp_path))
    wanted = [Encoding(token_ids=(5, 6), type_ids=(0, 0))]
    DiskTrunkStore().states(
        tiny_backbone(num_layers=2), wanted, depth=1, progress=Report().prepared
    )

    shown, listed = nunatak("cache", "show"), nunatak("cache", "show", "--json").json()
    cleared = nunatak("cache", "clear")

    assert "trunk states" in shown.stdout
    assert listed["num_bytes"] == 2 * 32 * 4
    assert cleared.stdout.startswith("0 bytes in ")
    assert nunatak("cache", "show", "--json").json()["states"] == []


def test_command_writes_a_backbone_and_names_the_scores_of_every_task(tmp_path: Path) -> None:
    base = save_tiny_backbone(tmp_path / "base", num_layers=2)
    examples = write_jsonl(tmp_path / "toy.jsonl", rows_of(toy_examples(40)))

    told = nunatak(
        *("multitask", str(tmp_path / "shared"), "--backbone", str(base), "--epochs", "1"),
        *("--set", "max_length=32", "--json"),
        *("--data", f"tone={examples}", "--data", f"intent={examples}"),
    ).json()

    assert told["digest"] == load_backbone(tmp_path / "shared").digest
    assert [*told["scores"]] == ["tone", "intent"]
    assert 0 <= told["scores"]["tone"]["accuracy"] <= 1


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
