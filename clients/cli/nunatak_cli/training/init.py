"""`nunatak init`: the folder of a new project, with examples, a recipe, a policy and a server."""

import json
import shutil
from collections.abc import Iterable, Mapping
from enum import StrEnum
from importlib.metadata import version
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer

from nunatak_cli.options import JsonOption
from nunatak_cli.output import print_outcome
from nunatak_contract.errors import invalid_option


class ReadyTask(StrEnum):
    """Tasks whose examples and cards come with this package."""

    ATTACK = "attack"
    INTENT = "intent"
    PERSONAL_DATA = "personal_data"
    TONE = "tone"


RECIPES: Mapping[ReadyTask, str] = {
    ReadyTask.ATTACK: "method: topk, layers: 3, epochs: 3, default_label: benign, max_length: 64",
    ReadyTask.INTENT: "method: topk, layers: 2",
    ReadyTask.PERSONAL_DATA: "method: topk, layers: 1, default_label: none",
    ReadyTask.TONE: "method: topk, layers: 2",
}


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="New or empty folder of the project.")
    ],
    *,
    ready: Annotated[
        list[ReadyTask] | None,
        typer.Option(
            "--with",
            help="Add a ready task: examples of our own, a recipe, a card with held-out scores, "
            "and the rules of a guard. Repeatable.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make the folder of a project: examples, a recipe, a policy, a compose file, a README."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        problem = f"expected a new or empty folder, but {folder} exists; name another FOLDER"
        raise invalid_option(problem)
    try:
        with as_file(files("nunatak_cli.training")) as ours:
            _write(folder, ours, dict.fromkeys(ready or ()))
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)  # a repeated command refuses half a project
        raise invalid_option(f"{folder} cannot be made: {error.strerror}") from error
    found = sorted(it.relative_to(folder).as_posix() for it in folder.rglob("*") if it.is_file())
    print_outcome(
        {"folder": str(folder), "files": found},
        f"made {folder} with {', '.join(found)}; its README.md has the first commands",
        as_json=as_json,
    )


def _write(folder: Path, ours: Path, tasks: Iterable[ReadyTask]) -> None:
    _copy(ours / "project", folder)
    for task in tasks:
        made = folder / "data" / task
        _copy(ours / "ready" / task, made)
        # The examples that choose the best epoch in the demo choose nothing in a project.
        (made / "dev.jsonl").rename(made / "test.jsonl")
    compose = folder / "compose.yaml"
    text = compose.read_text(encoding="utf-8")
    compose.write_text(text.replace("VERSION", version("nunatak")), encoding="utf-8")
    rules = json.loads((ours / "ready" / "rules.json").read_text(encoding="utf-8"))
    if guards := [rule for task in tasks for rule in rules.get(task, ())]:
        # A guard whose task does not answer lets no text through.
        made = folder / "triage.json"
        policy = json.loads(made.read_text(encoding="utf-8")) | {"on_failure": "block"}
        policy["rules"] += guards
        made.write_text(f"{json.dumps(policy, indent=2, ensure_ascii=False)}\n", encoding="utf-8")
    with (folder / "tasks.yaml").open("a", encoding="utf-8") as recipes:
        for task in tasks:
            recipes.write(f"  {task}: {{data: data/{task}, {RECIPES[task]}, promote: prod}}\n")


def _copy(source: Path, target: Path) -> None:
    for path in filter(Path.is_file, source.rglob("*")):
        made = target / path.relative_to(source)
        made.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, made)
