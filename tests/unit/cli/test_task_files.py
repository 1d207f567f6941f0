"""Laws of files that list tasks."""

from pathlib import Path

import pytest

from nunatak_cli.errors import TaskFileError
from nunatak_cli.options import MethodName
from nunatak_cli.task_files import method_choice, read_task_file, recipe_changes

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
