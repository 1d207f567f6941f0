"""`nunatak loadtest`: measure the speed and the memory of a running server."""

# ruff: noqa: PLC0415 - a command imports the load test when it runs, not for --help

import json
from pathlib import Path
from typing import Annotated

import typer

from nunatak_cli.options import JsonOption, example
from nunatak_cli.output import console, error_console, print_json
from nunatak_contract.errors import needs_extra

ScenarioArgument = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="Name of a scenario, or path of a TOML file.")
]
ServerOption = Annotated[str, typer.Option(metavar="URL", help="Address of the server.")]
TasksOption = Annotated[
    list[str] | None,
    typer.Option(
        "--task",
        metavar="REF",
        help="Task: name, name@alias or name/version. Repeatable. Absent: all tasks of the server "
        "that read a single text.",
        show_default=False,
    ),
]
UsersOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="N users, each of whom waits for an answer before the next request; replaces the "
        "scenario's arrivals.",
    ),
]
RateOption = Annotated[
    float | None,
    typer.Option(
        min=0.01,
        metavar="PER_S",
        help="Requests per second. Bursts of the scenario stay bursts; users become independent "
        "(Poisson) arrivals.",
    ),
]
DurationOption = Annotated[
    float | None,
    typer.Option(
        min=1,
        metavar="SECONDS",
        help="Replaces the scenario's duration; the steps of a scenario keep theirs.",
    ),
]
TextFileOption = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH", help="Texts to send, one per line; replaces the scenario's texts."
    ),
]
DEFAULT_SERVER = "http://127.0.0.1:8080"

EXAMPLES = {
    "run": "nunatak loadtest run single --server http://127.0.0.1:8080 --out ./measured",
    "scenarios": "nunatak loadtest scenarios",
}


def loadtest_app() -> typer.Typer:
    """Return the group with its commands."""
    app = typer.Typer(
        name="loadtest",
        help="Measure throughput, latencies and memory of a server.",
        no_args_is_help=True,
        epilog=example(EXAMPLES["run"]),
    )
    for name, command in {"run": run, "scenarios": scenarios}.items():
        app.command(name, epilog=example(EXAMPLES[name]))(command)
    return app


def run(  # noqa: PLR0913 - one parameter per option is how typer works
    *,
    scenario: ScenarioArgument = "users",
    server: ServerOption = DEFAULT_SERVER,
    task: TasksOption = None,
    users: UsersOption = None,
    rate: RateOption = None,
    duration: DurationOption = None,
    text_file: TextFileOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write the result and every request to this folder, which must not hold a result "
            "of the scenario yet.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Send the requests of a scenario to a server; exit 1 if a request fails."""
    with needs_extra("loadtest"):
        from nunatak_loadtest import check_unwritten, load_scenario, make_job, render, save_run
        from nunatak_loadtest import run as run_job
    chosen = load_scenario(scenario).changed(
        users=users, rate_per_s=rate, duration_s=duration, text_file=text_file
    )
    if out is not None:
        check_unwritten(out, chosen)
    job = make_job(chosen, server=server, tasks=task)
    if not as_json:
        error_console().print(f"{chosen.name}: {job.title} ...")
    result, samples = run_job(job)
    if out is not None:
        save_run(out, result, samples)
    if as_json:
        print_json(json.loads(result.model_dump_json()))
    else:
        console().print(render(result))
    if result.overall.failures or not result.overall.requests:
        raise typer.Exit(1)


def scenarios(*, as_json: JsonOption = False) -> None:
    """List the scenarios that come with the package."""
    with needs_extra("loadtest"):
        from nunatak_loadtest import load_scenario, scenario_names
    found = [load_scenario(name) for name in scenario_names()]
    if as_json:
        print_json({each.name: json.loads(each.model_dump_json()) for each in found})
        return
    for each in found:
        console().print(f"{each.name:<10} {each.title}")
