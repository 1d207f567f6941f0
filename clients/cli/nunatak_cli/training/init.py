"""`nunatak init`: the folder of a new project, with examples, a recipe, a policy and a server."""

import shutil
from collections.abc import Mapping
from importlib.metadata import version
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer

from nunatak_cli.options import JsonOption
from nunatak_cli.output import print_outcome
from nunatak_contract.errors import NunatakError

PLACES: Mapping[str, str] = {
    "README.md": "README.md",
    "tasks.yaml": "tasks.yaml",
    "triage.json": "triage.json",
    "compose.yaml": "compose.yaml",
    "train.csv": "data/urgent/train.csv",
    "dev.csv": "data/urgent/dev.csv",
}
"""The templates, and the place of each in a project."""


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="New or empty folder of the project.")
    ],
    *,
    as_json: JsonOption = False,
) -> None:
    """Make the folder of a project: examples, a recipe, a policy, a compose file, a README."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        problem = f"expected a new or empty folder, but {folder} exists; name another FOLDER"
        raise NunatakError("invalid_option", problem=problem)
    with as_file(files("nunatak_cli.training") / "project") as templates:
        for name, place in PLACES.items():
            made = folder / place
            made.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(templates / name, made)
    compose = folder / "compose.yaml"
    text = compose.read_text(encoding="utf-8")
    compose.write_text(text.replace("VERSION", version("nunatak")), encoding="utf-8")
    made = sorted(PLACES.values())
    print_outcome(
        {"folder": str(folder), "files": made},
        f"made {folder} with {', '.join(made)}; its README.md has the first commands",
        as_json=as_json,
    )
