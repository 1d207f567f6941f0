import json
from collections.abc import Generator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from doubles.backbones import tiny_backbone
from doubles.serving import running_server
from doubles.tasks import publish_tiny_task
from nunatak_cli.main import app
from nunatak_registry import Registry


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    folder: Path = tmp_path_factory.mktemp("registry")
    backbone = tiny_backbone()
    with Registry.open(folder) as registry:
        publish_tiny_task(registry, backbone)
        with running_server(backbone, registry) as address:
            yield address


def memory(server: str, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["memory", *arguments, "--server", server])
    assert result.exit_code == 0, result.output
    return result.output


def test_versions_are_loaded_pinned_shown_and_dropped_by_command(server: str) -> None:
    assert "no version of tone was in memory" in memory(server, "evict", "tone")
    assert "tone/1 is in memory" in memory(server, "preload", "tone")
    assert "tone/1 is pinned" in memory(server, "pin", "tone")

    shown = memory(server, "show")
    assert "tone/1" in shown
    assert " on the device" in shown
    assert "% saved (formula " in shown
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
