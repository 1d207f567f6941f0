"""Laws of files that list tasks."""

from pathlib import Path

import pytest

from doubles.backbones import save_tiny_backbone
from nunatak_cli.errors import TaskFileError
from nunatak_cli.options import MethodName
from nunatak_cli.task_files import method_choice, read_task_file, recipe_changes
from nunatak_cli.training_many import requests_of

YAML = """
backbone: minilm
shared: {epochs: 3, layers: 2, learning_rate: 1e-4}
tasks:
  tone: {data: tone.jsonl, layers: auto, promote: prod}
  names: {data: ner, method: lora, rank: 4, epochs: 5, dev: dev.jsonl}
"""
TOML = """
backbone = "minilm"
shared = {epochs = 3, layers = 2, learning_rate = 1e-4}
[tasks.tone]
data = "tone.jsonl"
layers = "auto"
promote = "prod"
[tasks.names]
data = "ner"
method = "lora"
rank = 4
epochs = 5
dev = "dev.jsonl"
"""


def written(tmp_path: Path, text: str, name: str = "tasks.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_yaml_and_toml_say_the_same(tmp_path: Path) -> None:
    assert read_task_file(written(tmp_path, YAML)) == read_task_file(
        written(tmp_path, TOML, "tasks.toml")
    )


def test_a_task_says_more_than_what_all_share(tmp_path: Path) -> None:
    tone, names = read_task_file(written(tmp_path, YAML)).tasks.values()

    assert (tone.layers, tone.promote) == ("auto", "prod")
    assert recipe_changes(tone) == {"epochs": 3, "learning_rate": 1e-4}
    assert recipe_changes(names) == {"epochs": 5, "learning_rate": 1e-4}


def test_settings_of_a_method_are_shared_among_the_tasks_that_have_it(tmp_path: Path) -> None:
    names = read_task_file(written(tmp_path, YAML)).tasks["names"]

    assert names.method is MethodName.LORA
    assert {name for name, value in method_choice(names).items() if value is not None} == {"rank"}


def test_a_task_that_counts_its_layers_has_no_share_to_keep(tmp_path: Path) -> None:
    shared = "shared: {layers: auto, target: 0.9}\ntasks: {a: {data: a}, b: {data: b, layers: 2}}"

    auto, counted = read_task_file(written(tmp_path, shared)).tasks.values()

    assert (auto.layers, auto.target) == ("auto", 0.9)
    assert (counted.layers, counted.target) == (2, None)


def test_a_task_that_chooses_its_layers_keeps_the_shared_share_unless_it_has_its_own(
    tmp_path: Path,
) -> None:
    shared = (
        "shared: {layers: 2, target: 0.9}\n"
        "tasks: {a: {data: a, layers: auto}, b: {data: b, layers: auto, target: 0.8}}"
    )

    one, other = read_task_file(written(tmp_path, shared)).tasks.values()

    assert (one.layers, one.target, other.target) == ("auto", 0.9, 0.8)


def test_pretraining_is_named_as_in_train(tmp_path: Path) -> None:
    text = "tasks: {tone: {data: a, tapt_epochs: 2, tapt_learning_rate: 1e-4, epochs: 3}}"

    (tone,) = read_task_file(written(tmp_path, text)).tasks.values()

    assert (tone.tapt_epochs, tone.tapt_learning_rate) == (2, 1e-4)
    assert recipe_changes(tone) == {"epochs": 3}


def test_a_rate_of_no_pretraining_is_refused(tmp_path: Path) -> None:
    save_tiny_backbone(tmp_path / "backbone")
    text = (
        f"backbone: {tmp_path / 'backbone'}\ntasks: {{tone: {{data: a, tapt_learning_rate: 1e-4}}}}"
    )
    path = written(tmp_path, text)

    with pytest.raises(TaskFileError, match=r"tasks\.tone: .*belongs to --tapt-epochs"):
        requests_of(read_task_file(path), path, cache=False, resume=False)


def test_pretraining_reaches_the_recipe(tmp_path: Path) -> None:
    save_tiny_backbone(tmp_path / "backbone")
    text = f"backbone: {tmp_path / 'backbone'}\ntasks: {{tone: {{data: a, tapt_epochs: 2}}}}"
    path = written(tmp_path, text)

    ((request, _),) = requests_of(read_task_file(path), path, cache=False, resume=False).items

    assert request.changes["tapt"] == {"epochs": 2, "learning_rate": None}


def test_paths_are_relative_to_the_file_where_they_are_there(tmp_path: Path) -> None:
    (tmp_path / "tone.jsonl").touch()
    tone, names = read_task_file(written(tmp_path, YAML)).tasks.values()

    assert tone.data == str(tmp_path / "tone.jsonl")
    assert (names.data, names.dev) == ("ner", tmp_path / "dev.jsonl")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("tasks: {tone: {data: a, epoch: 3}}", r"tasks\.tone\.epoch: Extra inputs"),
        ("tasks: {tone: {data: a}}\nshard: {}", r"shard: Extra inputs"),
        ("shared: {data: a}\ntasks: {tone: {data: a}}", r"shared\.data: Extra inputs"),
        ("tasks: {tone: {layers: 2}}", r"tasks\.tone\.data: Field required"),
        ("tasks: {tone: {data: a, epochs: 0}}", r"tasks\.tone\.epochs: .*greater than"),
        ("tasks: {tone: {data: a, method: magic}}", r"tasks\.tone\.method: .*'topk'"),
        ("tasks: {}", r"tasks: .*at least 1"),
        ("- tone", r"file: .*dictionary"),
        ("tasks: {tone: {data: a}, tone: {data: b}}", r"file: .*'tone' stands twice.*line 1"),
        ("tasks: [", r"file: .*line 1"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(TaskFileError, match=rf"tasks\.yaml: {place}"):
        read_task_file(written(tmp_path, text))


@pytest.mark.parametrize("name", ["tasks.txt", "absent.yaml"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    written(tmp_path, "tasks: {}", "tasks.txt")

    with pytest.raises(TaskFileError, match=name):
        read_task_file(tmp_path / name)
