"""Laws of files that list tasks, and of `nunatak sweep`."""

from pathlib import Path

import pytest

from doubles.backbones import tiny_backbone
from doubles.refusals import raises
from doubles.sweeps import toy_file, toy_folder
from doubles.terminals import Ran, nunatak
from nunatak_cli.options import LabelledRows, OnBadRow
from nunatak_cli.training.runs import TaskSettings, in_order, read_task_file, runs_of
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, Lora, TopK
from nunatak_training.recipes import Recipe, default_recipe
from nunatak_training.run_settings import read_settings

YAML = """
backbone: minilm
shared: {epochs: 3, layers: 2, learning_rate: 1e-4}
tasks:
  tone: {data: tone.jsonl, layers: auto, promote: prod}
  names: {data: ner, method: lora, rank: 4, epochs: 5, dev: dev.jsonl}
"""


def recipe_of(task: TaskSettings) -> Recipe:
    settings = read_settings(task.named)
    return default_recipe(settings.method, changes=settings.changes)


def written(tmp_path: Path, text: str, name: str = "tasks.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_task_says_more_than_what_all_share(tmp_path: Path) -> None:
    tone, names = read_task_file(written(tmp_path, YAML)).tasks.values()

    assert tone.promote == "prod"
    assert tone.named == {"epochs": 3, "learning_rate": "1e-4", "layers": "auto"}
    assert names.named == {"epochs": 5, "learning_rate": "1e-4", "method": "lora", "rank": 4}


@pytest.mark.parametrize(
    ("shared", "own", "named"),
    [
        ("layers: auto", "", {"layers": "auto", "target": 0.9}),
        ("layers: auto", "layers: 2", {"layers": 2}),
        ("layers: 2", "layers: auto", {"layers": "auto", "target": 0.9}),
        ("layers: 2", "layers: auto, target: 0.8", {"layers": "auto", "target": 0.8}),
    ],
)
def test_only_a_task_that_chooses_its_layers_keeps_the_shared_share(
    tmp_path: Path, shared: str, own: str, named: dict[str, object]
) -> None:
    text = f"shared: {{{shared}, target: 0.9}}\ntasks: {{a: {{data: a, {own}}}}}"

    (task,) = read_task_file(written(tmp_path, text)).tasks.values()

    assert task.named == named


def test_shared_settings_of_methods_reach_the_tasks_of_these_methods(tmp_path: Path) -> None:
    shared = "shared: {rank: 4, first_layer: 3, size: 16, on_bad_row: skip}\n"
    names = {"a": "method: lora", "b": "method: bottleneck", "c.1": "epochs: 1"}
    tasks = ", ".join(f"{name}: {{data: datasets:x, {said}}}" for name, said in names.items())
    path = written(tmp_path, f"{shared}tasks: {{{tasks}}}")

    lora, bottleneck, topk = (run for run in runs_of(read_task_file(path), path))

    assert lora.settings.method == Lora(rank=4, alpha=16.0, targets=QUERY_AND_VALUE, first_layer=3)
    assert bottleneck.settings.method == Bottleneck(size=16, first_layer=3)
    assert topk.settings.method == TopK(num_layers=2)
    assert topk.spelt.rejected == Path("c.1.rejected.jsonl")


@pytest.mark.parametrize("said", ["tapt: {epochs: 2}", "tapt.epochs: 2"])
def test_settings_reach_the_recipe_as_in_train(tmp_path: Path, said: str) -> None:
    path = written(tmp_path, f"tasks: {{tone: {{data: datasets:a, {said}}}}}")

    (run,) = runs_of(read_task_file(path), path)

    assert run.settings.changes == read_settings({"tapt.epochs": 2}).changes


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("epoch: 3", "there is no setting 'epoch'; the nearest is 'epochs'"),
        ("layers: 9", "topk layers must be in"),
        ("method: [lora]", "method"),
        ("promote: ../prod", "alias"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused_with_its_task(
    tmp_path: Path, said: str, problem: str
) -> None:
    path = written(tmp_path, f"tasks: {{a: {{data: datasets:a}}, b: {{data: datasets:b, {said}}}}}")

    with raises("invalid_task_file", match=rf"tasks\.yaml: tasks\.b: .*{problem}"):
        in_order(runs_of(read_task_file(path), path), path, tiny_backbone())


def test_paths_are_relative_to_the_file_where_they_are_there(tmp_path: Path) -> None:
    (tmp_path / "tone.jsonl").touch()
    tone, names = read_task_file(written(tmp_path, YAML)).tasks.values()

    assert tone.data == str(tmp_path / "tone.jsonl")
    assert (names.data, names.dev) == ("ner", tmp_path / "dev.jsonl")


@pytest.mark.parametrize("said", ["data: gone", "data: a.jsonl, dev: gone.jsonl", "data: empty"])
def test_examples_that_are_not_there_are_told_before_the_first_run(
    tmp_path: Path, said: str
) -> None:
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "empty").mkdir()
    path = written(tmp_path, f"tasks: {{a: {{data: a.jsonl}}, b: {{{said}}}}}")

    with raises("invalid_task_file", match=r"tasks\.yaml: tasks\.b: "):
        runs_of(read_task_file(path), path)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("tasks: {tone: {data: a}}\nshard: {}", r"shard: there is no such field"),
        ("shared: {data: a}\ntasks: {tone: {data: a}}", r"shared\.data: each task"),
        ("tasks: {tone: {layers: 2}}", r"tasks\.tone\.data: expected a value, got none"),
        ("tasks: {tone: {data: a, kind: poem}}", r"tasks\.tone\.kind: .*'ranking'"),
        ("tasks: {tone: {data: [a]}}", r"tasks\.tone\.data: expected a text, got a list"),
        ("shared: {rank: 4}\ntasks: {tone: {data: a}}", r"shared\.rank: no task has a method"),
        ("tasks: {}", r"tasks: .*at least 1"),
        ("- tone", r"file: expected settings by name"),
        ("tasks: {tone: {data: a}, tone: {data: b}}", r"file: .*'tone' stands twice.*line 1"),
        ("tasks: [", r"file: .*line 1"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, text: str, place: str) -> None:
    with raises("invalid_task_file", match=rf"tasks\.yaml: {place}"):
        read_task_file(written(tmp_path, text))


@pytest.mark.parametrize("name", ["tasks.txt", "absent.yaml"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    written(tmp_path, "tasks: {}", "tasks.txt")

    with raises("invalid_task_file", match=name):
        read_task_file(tmp_path / name)


def test_values_of_the_command_take_the_place_of_those_of_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, YAML)
    texts = {"shared.epochs": "5", "tasks.tone.layers": "1", "tasks.names.tapt.epochs": "2"}

    tone, names = read_task_file(file, texts).tasks.values()

    assert tone.named == {"epochs": 5, "learning_rate": "1e-4", "layers": 1}
    assert names.named["tapt.epochs"] == 2
    assert names.named["rank"] == 4
    with raises("invalid_task_file", match="backbone has no settings"):
        read_task_file(file, {"backbone.epochs": "5"})


@pytest.mark.parametrize("data", [".", "..", ".tone.jsonl"])
def test_the_file_of_bad_rows_is_never_hidden(data: str) -> None:
    rows = LabelledRows(on_bad_row=OnBadRow.SKIP)

    assert rows.spelt_in(data).rejected == Path("data.rejected.jsonl")


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = toy_folder(tmp_path_factory.mktemp("sweep"))
    toy_file(folder, recipe={"epochs": 1, "max_length": 32})
    return folder


def sweep(folder: Path, results: Path, *options: str) -> Ran:
    return nunatak("sweep", "run", str(folder / "sweep.yaml"), "--results", str(results), *options)


def test_sweep_runs_goes_on_and_reports(folder: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    both = "methods=[{kind: head}, {kind: bottleneck, size: [4]}]"
    first = sweep(folder, results)
    second = sweep(folder, results, "--set", "seeds=[0,1]", "--set", both)

    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "1 run, 0 of them done before" in first.stderr
    assert "4 runs, 1 of them done before" in second.stderr
    assert len(list(results.glob("*.jsonl"))) == 4

    printed = nunatak("sweep", "report", str(results))
    assert printed.exit_code == 0
    assert printed.stdout.startswith("| task |")
    assert nunatak("sweep", "report", str(results), "--out", str(tmp_path / "out")).exit_code == 0
    assert (tmp_path / "out" / "table.md").read_text() == printed.stdout


def test_failed_run_is_reported_and_tried_again_only_when_asked(
    folder: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    senseless = ("--set", "regularizers=[{name: graddrop}]")

    runs = [sweep(folder, results, *senseless, *it) for it in ((), (), ("--retry-failed",))]

    assert [it.exit_code for it in runs] == [1, 1, 1]
    assert ["failed [invalid_recipe]" in it.stderr for it in runs] == [True, False, True]
    assert [it.stderr.count("error [invalid_recipe]: toy") for it in runs] == [1, 1, 1]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("gone=1", "gone: there is no such field"),
        ("seeds", "--set expects NAME=VALUE"),
        ("tasks.first=1", "tasks has no settings with names"),
    ],
)
def test_changes_that_make_no_sweep_are_refused(
    folder: Path, tmp_path: Path, change: str, problem: str
) -> None:
    ran = sweep(folder, tmp_path / "results", "--set", change)

    assert ran.exit_code == 1
    assert problem in ran.stderr


def test_report_of_an_empty_folder_is_refused(tmp_path: Path) -> None:
    nunatak("sweep", "report", str(tmp_path)).assert_refused("invalid_sweep")


def test_a_run_that_is_published_twice_is_one_version(folder: Path, tmp_path: Path) -> None:
    sweep(folder, tmp_path / "results")
    place = ("--registry", str(tmp_path / "registry"), "--create", "--promote", "prod")
    words = ("sweep", "publish", str(tmp_path / "results"), "--task", "tone", *place)

    first, again, told = (nunatak(*words, *it).stdout for it in ((), (), ("--json",)))

    assert "published tone/1\ntone@prod -> version 1 (new)\n" in first
    assert "tone/1 was there already with the same content; nothing was published\n" in again
    assert "tone@prod -> version 1 (it was there already; nothing moved)\n" in again
    assert '"is_new": false,\n  "alias": "prod"' in told


def test_publish_of_another_task_than_the_sweeps_is_refused(folder: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    sweep(folder, results)

    ran = nunatak("sweep", "publish", str(results), "--task", "tone", "--of", "gone")

    assert ran.exit_code == 1
    assert "expected one of the tasks toy, got 'gone'" in ran.stderr
