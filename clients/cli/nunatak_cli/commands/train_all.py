"""`nunatak train-all`: every task of a file, on one pass through the shared layers."""

# ruff: noqa: PLC0415 - torch is imported when training starts, not for --help

from pathlib import Path
from typing import Annotated

import typer

from nunatak_cli.failures import needs_extra
from nunatak_cli.options import CacheOption, JsonOption, RegistryOption, ResumeOption
from nunatak_cli.output import console, print_json
from nunatak_cli.registries import created_registry


def train_all(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="YAML or TOML: tasks by name, with the options of train."
        ),
    ],
    *,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
    cache: CacheOption = True,
    resume: ResumeOption = True,
) -> None:
    """Train all tasks of a file and publish each; one that fails does not stop the others."""
    with needs_extra("training"):
        from nunatak_cli.task_files import read_task_file
        from nunatak_cli.training_many import requests_of, train_in_turn
        from nunatak_cli.views.training import many_json, many_table
    listed = read_task_file(file)
    requests = requests_of(listed, file, cache=cache, resume=resume)
    with created_registry(registry) as opened:
        results = train_in_turn(requests, opened)
    if as_json:
        print_json(many_json(results))
    else:
        console().print(many_table(results))
    if any(result.failure is not None for result in results):
        raise typer.Exit(1)
