"""`nunatak loadtest`: how fast a running server is, and how much memory it takes."""

# ruff: noqa: PLC0415 - heavy imports run when their command does, not for --help

import json
from pathlib import Path
from typing import Annotated

import typer

from nunatak_cli.failures import needs_extra
from nunatak_cli.options import JsonOption
from nunatak_cli.output import console, error_console, print_json


def loadtest(
    *,
    task: Annotated[
        list[str],
        typer.Option(
            metavar="REF", help="Task: name, name@alias or name/version. Repeat for several."
        ),
    ],
    server: Annotated[
        str, typer.Option(metavar="URL", help="The server to load.")
    ] = "http://127.0.0.1:8080",
    users: Annotated[
        int, typer.Option(min=1, metavar="N", help="Simulated users; each waits for its answer.")
    ] = 8,
    duration: Annotated[int, typer.Option(min=1, metavar="SECONDS", help="How long.")] = 30,
    text_file: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Texts to send, one per line. Absent: a dozen sentences."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure throughput, latencies and memory of a server; exit 1 if a request fails."""
    with needs_extra("loadtest"):
        from nunatak_loadtest import LoadTestSettings, render, run
    settings = LoadTestSettings.checked(
        server=server,
        users=users,
        duration_s=duration,
        user={"tasks": task, "text_file": text_file},
    )
    if not as_json:
        error_console().print(f"{users} users ask {len(task)} tasks for {duration} s ...")
    report = run(settings)
    if as_json:
        print_json(json.loads(report.model_dump_json()))
    else:
        console().print(render(report))
    if report.overall.failures or not report.overall.requests:
        raise typer.Exit(1)
