"""`nunatak backbone`, and the commands that find an added backbone by its name."""

import json
import sys
from pathlib import Path

import pytest

from doubles.backbones import save_tiny_backbone
from doubles.tasks import publish_tiny_task
from doubles.terminals import nunatak
from nunatak_model import DEFAULT_BACKBONE, load_backbone, source_of
from nunatak_registry import Registry


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "nunatak" / "backbones"


def test_an_added_backbone_is_listed_shown_verified_and_used(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny_backbone(tmp_path / "tiny")
    digest = load_backbone(folder).digest
    assert nunatak("backbone", "list").stdout.startswith("built in: minilm ")

    added = nunatak("backbone", "add", str(folder), "--name", "mine")
    assert added.exit_code == 0, added.stderr
    assert added.stdout.startswith("added mine: bert, 4 layers of width 32, up to 66 tokens\n")
    assert "use it with --backbone mine" in added.stdout

    listed = json.loads(nunatak("backbone", "list", "--json").stdout)["backbones"]
    assert [(it["name"], it["digest"]) for it in listed] == [("mine", digest)]
    assert "mine  bert" in nunatak("backbone", "list").stdout
    shown = json.loads(nunatak("backbone", "show", "mine", "--json").stdout)
    assert (shown["source"], shown["folder"]) == ("tiny", str(data / "mine"))
    assert digest in nunatak("backbone", "show", "mine").stdout
    assert nunatak("backbone", "verify").stdout == "mine: whole\n"

    nunatak("backbone", "add", str(save_tiny_backbone(tmp_path / "theirs", seed=7)))
    nunatak("backbone", "add", str(folder), "--name", "ours")
    with Registry.open(tmp_path / "registry") as registry:
        publish_tiny_task(registry, load_backbone("mine"), task="tone")
        publish_tiny_task(registry, load_backbone("ours"), task="spam")
        publish_tiny_task(registry, load_backbone("theirs"), task="mood")
    (tmp_path / "texts.jsonl").write_text('{"text": "hello", "label": "no"}\n')
    rows, places = str(tmp_path / "texts.jsonl"), ("--registry", str(tmp_path / "registry"))
    for command in (
        ("predict", "hello", "--task", "nope", "--task", "tone", "--task", "mood", "--json"),
        ("predict-file", rows, str(tmp_path / "out.jsonl"), "--task", "tone"),
        ("task", "promote", "tone/1"),
        ("task", "export", "tone/1", str(tmp_path / "exported")),
        ("task", "verify", "--probe"),
        ("task", "verify", "--probe", "--backbone", "mine"),
    ):
        ran = nunatak(*command, *places)
        said = ran.stdout + ran.stderr
        assert "mismatch" not in said, command
        assert "not_probed" not in said, command
        assert ran.exit_code == ("nope" in command), command
    with Registry.open(tmp_path / "registry") as registry:
        publish_tiny_task(registry, load_backbone(folder), task="tiny")
    asked = [it for task in ("tiny", "tone", "spam") for it in ("--task", task)]
    told = nunatak("predict", "hello", *asked, *places)
    assert told.exit_code == 0, told.stdout
    job = ("predict-file", rows, str(tmp_path / "no.jsonl"), *places)
    assert "run on mine, theirs; give" in nunatak(*job, "--task", "tone", "--task", "mood").stderr
    # A backbone that is named takes the place of the recorded one.
    other = str(save_tiny_backbone(tmp_path / "other", seed=9))
    named = nunatak("predict", "hello", "--task", "tone", *places, "--backbone", other)
    assert "[backbone_mismatch]" in named.stdout
    monkeypatch.setenv("NUNATAK_BACKBONE", other)
    named = nunatak(*job, "--task", "tone")
    assert "[backbone_mismatch]" in named.stderr


def test_a_recorded_name_loads_no_folder_but_that_of_an_added_backbone(
    tmp_path: Path, data: Path
) -> None:
    folder = save_tiny_backbone(tmp_path / "tiny")
    nunatak("backbone", "add", str(folder), "--name", "mine")

    for suffix in ("", "+int8"):
        assert source_of(f"mine{suffix}") == f"{data / 'mine'}{suffix}"
    for name in (str(folder), f"../backbones/{data.name}", "absent", "", ".."):
        assert source_of(name) == DEFAULT_BACKBONE
    default = load_backbone()
    assert load_backbone(source_of(default.name)).digest == default.digest


def test_a_damaged_backbone_fails_the_check(tmp_path: Path, data: Path) -> None:
    nunatak("backbone", "add", str(save_tiny_backbone(tmp_path / "tiny")))
    with Registry.open(tmp_path / "registry") as registry:
        publish_tiny_task(registry, load_backbone("tiny"), task="tone")
        publish_tiny_task(registry, load_backbone(), task="mood")
    (data / "tiny" / "tokenizer.json").write_text("{}")

    checked = nunatak("backbone", "verify", "tiny", "--json")

    assert checked.exit_code == 1
    (found,) = json.loads(checked.stdout)["backbones"]
    assert "tokenizer.json" in found["problem"]
    places = ("--registry", str(tmp_path / "registry"))
    probed = nunatak("task", "verify", "--probe", "--json", *places)
    assert [it["subject"] for it in json.loads(probed.stdout)["checks"]] == ["tone/1"]


@pytest.mark.parametrize("words", [("show", "nothing"), ("verify", "nothing")])
def test_an_unknown_name_is_an_error(words: tuple[str, str]) -> None:
    nunatak("backbone", *words).assert_refused("backbone_not_found")


def test_a_refused_checkpoint_is_one_line_with_the_reason(tmp_path: Path, data: Path) -> None:
    folder = save_tiny_backbone(tmp_path / "tiny")
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, "model_type": "funnel"}))

    failed = nunatak("backbone", "add", str(folder), "--quiet")

    failed.assert_refused(
        *("unsupported_import", "cannot import 'tiny': model_type must be one of"),
        "got 'funnel'; take a checkpoint of one of them",
    )
    assert not (data / "tiny").exists()


def test_without_transformers_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny_backbone(tmp_path / "tiny")
    raw = json.loads((folder / "config.json").read_text())
    named = {**raw, "architectures": ["BertForTokenClassification"]}
    (folder / "config.json").write_text(json.dumps(named))
    registry = ("--registry", str(tmp_path / "registry"), "--create")
    words = ("task", "import", str(folder), "--task", "tone", "--backbone", str(folder), *registry)
    monkeypatch.setitem(sys.modules, "transformers", None)  # as without the installed package

    nunatak(*words, "--quiet").assert_refused("missing_extra", "nunatak[model]")
