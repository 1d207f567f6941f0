"""`nunatak init`: the folder of a new project, with examples, a recipe, a policy and a server."""

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

PLACES: Mapping[str, str] = {
    "README.md": "README.md",
    "tasks.yaml": "tasks.yaml",
    "triage.json": "triage.json",
    "compose.yaml": "compose.yaml",
    "train.csv": "data/urgent/train.csv",
    "dev.csv": "data/urgent/dev.csv",
}
"""The templates, and the place of each in a project."""


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
# The examples that choose the best epoch in the demo choose nothing in a project.
READY_PLACES: Mapping[str, str] = {
    "README.md": "README.md",
    "train.jsonl": "train.jsonl",
    "dev.jsonl": "test.jsonl",
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
            help="Add a ready task: examples of our own, a recipe, and a card with held-out "
            "scores. Repeatable.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make the folder of a project: examples, a recipe, a policy, a compose file, a README."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        problem = f"expected a new or empty folder, but {folder} exists; name another FOLDER"
        raise invalid_option(problem)
    tasks = dict.fromkeys(ready or ())
    places = {f"project/{name}": place for name, place in PLACES.items()}
    for task in tasks:
        places |= {f"ready/{task}/{it}": f"data/{task}/{to}" for it, to in READY_PLACES.items()}
    try:
        _write(folder, places, tasks)
    except OSError as error:
        raise invalid_option(f"{folder} cannot be made: {error.strerror}") from error
    found = sorted(places.values())
    print_outcome(
        {"folder": str(folder), "files": found},
        f"made {folder} with {', '.join(found)}; its README.md has the first commands",
        as_json=as_json,
    )


def _write(folder: Path, places: Mapping[str, str], tasks: Iterable[ReadyTask]) -> None:
    with as_file(files("nunatak_cli.training")) as ours:
        for name, place in places.items():
            made = folder / place
            made.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ours / name, made)
    compose = folder / "compose.yaml"
    text = compose.read_text(encoding="utf-8")
    compose.write_text(text.replace("VERSION", version("nunatak")), encoding="utf-8")
    with (folder / "tasks.yaml").open("a", encoding="utf-8") as recipes:
        for task in tasks:
            recipes.write(f"  {task}: {{data: data/{task}, {RECIPES[task]}, promote: prod}}\n")
