"""Many tasks of one file: each is published, even if others fail."""

import json
from collections.abc import Generator
from pathlib import Path

import pytest
from pydantic import JsonValue
from typer.testing import CliRunner

from doubles.backbones import save_tiny_backbone
from doubles.examples import rows_of, toy_examples, write_jsonl
from doubles.serving import serving_tone
from doubles.terminals import Ran, nunatak
from nunatak_cli.main import app
from nunatak_registry import Registry
from nunatak_training.cache import stored_states


@pytest.fixture(name="folder")
def make_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NUNATAK_CACHE", str(tmp_path / "cache"))
    save_tiny_backbone(tmp_path / "backbone", num_layers=3)
    write_jsonl(tmp_path / "tone.jsonl", rows_of(toy_examples(40)))
    write_jsonl(tmp_path / "broken.jsonl", [{"text": "a", "label": "x"}, {"text": ""}])
    return tmp_path


def trained(folder: Path, tasks: dict[str, JsonValue], *options: str) -> Ran:
    shared = {"epochs": 1, "max_length": 16}
    content = {"backbone": str(folder / "backbone"), "shared": shared, "tasks": tasks}
    # JSON is YAML too.
    (folder / "tasks.yaml").write_text(json.dumps(content), encoding="utf-8")
    registry = ("--registry", str(folder / "registry"), "--create")
    return nunatak("train-all", str(folder / "tasks.yaml"), "--json", *registry, *options)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with serving_tone(tmp_path_factory.mktemp("registry")) as address:
        yield address


def memory(server: str, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["memory", *arguments, "--server", server])
    assert result.exit_code == 0, result.output
    return result.output


def test_every_task_is_published_on_one_pass_through_each_trunk_layer(folder: Path) -> None:
    ran = trained(
        folder,
        {
            "head": {"data": "tone.jsonl", "method": "head", "promote": "prod"},
            "one": {"data": "tone.jsonl", "layers": 1},
            "two": {"data": "tone.jsonl", "layers": 2},
        },
    )

    assert (ran.exit_code, ran.json()["published"], ran.json()["failed"]) == (0, 3, 0)
    with Registry.open(str(folder / "registry")) as registry:
        assert registry.resolve("head@prod").version == 1
        assert registry.resolve("two").version == 1
    # Train and dev examples, at the three split depths, the lowest first.
    depths = [it.facts.depth for it in stored_states(folder / "cache" / "trunk")]
    assert sorted(depths) == [1, 1, 2, 2, 3, 3]
    events = [json.loads(line) for line in ran.stderr.splitlines()]
    assert [it["task"] for it in events if "task" in it] == ["two", "one", "head"]


def test_each_task_tells_how_many_rows_it_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with (folder / "tone.jsonl").open("a") as file:
        file.write('{"text": "", "label": "good"}\n')

    ran = trained(folder, {"tone": {"data": "tone.jsonl", "on_bad_row": "skip"}})

    assert "left out 1 row; the reasons are in tone.rejected.jsonl" in ran.stderr


def test_a_task_that_fails_is_reported_and_the_others_are_published(folder: Path) -> None:
    ran = trained(
        folder,
        {"broken": {"data": "broken.jsonl"}, "tone": {"data": "tone.jsonl"}},
        "--no-cache",
        "--no-resume",
        "--quiet",
    )

    status = {it["task"]: it["status"] for it in ran.json()["tasks"]}
    assert ran.exit_code == 1
    assert status == {"broken": "failed", "tone": "published"}
    assert "error [missing_column]: broken: broken.jsonl:2" in ran.stderr
    assert not (folder / "cache").exists()


def test_a_slip_in_the_last_task_stops_before_the_first_is_trained(folder: Path) -> None:
    slip: JsonValue = {"data": "tone.jsonl", "layers": 9}

    ran = trained(folder, {"tone": {"data": "tone.jsonl"}, "slip": slip})

    ran.assert_refused("invalid_task_file", "tasks.slip", "topk layers")
    assert not (folder / "registry").exists()


def test_versions_are_loaded_pinned_shown_and_dropped_by_command(server: str) -> None:
    assert "no version of tone was in memory" in memory(server, "evict", "tone")
    assert "tone/1 is in memory" in memory(server, "preload", "tone")
    assert "tone/1 is pinned" in memory(server, "pin", "tone")

    shown = memory(server, "show")
    assert "tone/1" in shown
    assert " on the device" in shown
    assert "20.5% more (formula 0.0%)" in shown
    report = json.loads(memory(server, "show", "--json"))
    assert report["tasks"][0]["pinned"]
    assert report["tiers"]["device"]["pinned_bytes"] == report["tasks"][0]["bytes"]

    assert "unpinned: tone/1" in memory(server, "unpin", "tone")
    assert "evicted: tone/1" in memory(server, "evict", "tone/1")


def test_the_formula_of_the_savings_stands_next_to_the_bytes_of_the_server(server: str) -> None:
    memory(server, "preload", "tone")
    command = ["savings", "--tasks", "2", "--server", server]

    shown = CliRunner().invoke(app, command)
    listed = CliRunner().invoke(app, [*command, "--json"])

    assert "the server holds 1 task version" in shown.output
    assert json.loads(listed.output)["server"]["tasks"][0]["task"] == "tone"
