"""Laws of printing: a text of a model, a file or a server commands no terminal.

`nunatak_cli/output.py` prints, as ruff's `banned-api` says; `tests/unit/cli/test_output.py` has its
laws. Here is a command for each way in which foreign texts come.
"""

import json
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass

import pytest
from typer.testing import CliRunner

from doubles.backbones import save_tiny_backbone
from doubles.hostile_texts import HOSTILE, HOSTILE_FILE_NAME, MARKUP, hostile_server, obeyed
from doubles.tasks import tiny_task
from nunatak_cli.main import app
from nunatak_contract.evidence import DataRecord, RecipeRecord
from nunatak_model import load_backbone
from nunatak_registry import Registry

LABELS = (MARKUP, "[link=https:evil]", "[/]")
DIGEST = "d" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A registry, a backbone and a file of hostile names and texts, and two hostile servers."""

    local: tuple[str, ...]
    file: str
    answering: str
    refusing: str


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Generator[World]:
    folder = tmp_path_factory.mktemp("world")
    place = folder / HOSTILE_FILE_NAME
    save_tiny_backbone(place)
    draft, blobs = tiny_task(load_backbone(place), labels=LABELS)
    update = {
        "note": HOSTILE,
        "data": DataRecord(
            name=HOSTILE, train_digest=DIGEST, dev_digest=DIGEST, num_train=9, num_dev=3
        ),
        "recipe": RecipeRecord(settings={HOSTILE: HOSTILE, "method": [HOSTILE]}, digest=DIGEST),
    }
    with Registry.open(folder / "registry") as registry:
        registry.publish(draft.model_copy(update=update), blobs)
    rows = [{"text": HOSTILE, "label": f"{number % 2}{HOSTILE}"} for number in range(12)]
    file = folder / f"labels {HOSTILE_FILE_NAME}.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    with hostile_server(refuses=False) as answering, hostile_server(refuses=True) as refusing:
        yield World(
            local=("--registry", str(folder / "registry"), "--backbone", str(place)),
            file=str(file),
            answering=answering,
            refusing=refusing,
        )


COMMANDS: dict[str, Callable[[World], tuple[str, ...]]] = {
    "tables": lambda it: ("task", "show", "tone", *it.local[:2]),
    "JSON": lambda it: ("task", "show", "tone", "--json", *it.local[:2]),
    "answers": lambda it: ("predict", "text", "--task", "a", "--stream", "--server", it.answering),
    "refusal": lambda it: ("predict", "text", "--task", "a", "--server", it.refusing),
    "error": lambda it: ("evaluate", "tone", "--data", it.file, *it.local),
    "progress": lambda it: ("backbone", "add", it.local[-1], "--name", HOSTILE),
    "usage": lambda _: ("task", "show", "tone", f"{MARKUP}\x1b[2J"),
}


@pytest.mark.parametrize("styles", [False, True], ids=["pipe", "terminal"])
@pytest.mark.parametrize("kind", COMMANDS)
def test_no_command_prints_what_a_terminal_obeys(kind: str, world: World, *, styles: bool) -> None:
    look = {"FORCE_COLOR": "1", "TERM": "xterm-256color"} if styles else {"NO_COLOR": "1"}

    result = CliRunner().invoke(app, COMMANDS[kind](world), env={"COLUMNS": "600", **look})

    assert result.exception is None or isinstance(result.exception, SystemExit)
    output = (result.stdout_bytes + result.stderr_bytes).decode()
    assert obeyed(output, has_styles=styles) == set()
    assert "evil[b]" in output.replace("\\[", "[").replace("\\]", "]")


def test_file_names_that_are_no_text_are_printed(world: World) -> None:
    name = os.fsdecode(b"evil\xff\x1b[2J.jsonl")

    ran = CliRunner().invoke(app, ("train", "--task", "tone", "--data", name, *world.local))

    assert "evil" in ran.stderr
    assert obeyed(ran.stderr) == set()
