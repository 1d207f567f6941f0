"""`nunatak loadtest`: measure the speed and the memory of a running server."""

# ruff: noqa: PLC0415 - a command imports the load test when it runs, not for --help

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from nunatak_cli.options import JsonOption, ServerOption, group
from nunatak_cli.output import print_outcome, remark
from nunatak_contract.errors import needs_extra
from nunatak_loadtest.scenarios import SCENARIOS, scenario_named

DEFAULT_SERVER = "http://127.0.0.1:8080"


def run(  # noqa: PLR0913 - one parameter per option is how typer works
    *,
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="Name of a scenario.")
    ] = "users",
    server: ServerOption = DEFAULT_SERVER,
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            metavar="REF",
            help="Task: name, name@alias or name/version; a policy for the scenario of verdicts. "
            "Repeatable. Absent: all tasks of the server that read a single text.",
        ),
    ] = None,
    users: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="N users, each of whom waits for an answer before the next request; replaces the "
            "scenario's arrivals.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            metavar="PER_S",
            help="Requests per second. Bursts of the scenario stay bursts; users become "
            "independent (Poisson) arrivals.",
        ),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="Replaces the scenario's duration; the steps of a scenario keep theirs.",
        ),
    ] = None,
    text_file: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Texts to send: .txt with one per line, or .jsonl, .csv or .tsv with a column "
            "text.",
        ),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, metavar="N", help="Processes that send requests, for high rates.")
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write the report, Locust's page and its CSV files to this folder, which must not "
            "hold a report of the scenario yet.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Send the requests of a scenario to a server; exit 1 if a request fails."""
    with needs_extra("loadtest"):
        # Only looked for, because its import patches the process.
        if find_spec("locust") is None:
            raise ModuleNotFoundError(name="locust")
        from nunatak_loadtest.process import run_locust
        from nunatak_loadtest.report import render
    title = scenario_named(scenario).title
    if not as_json:
        remark(f"{scenario}: {title} ...")
    report = run_locust(
        scenario,
        server=server,
        tasks=task or (),
        users=users,
        rate_per_s=rate,
        seconds=duration,
        text_file=text_file,
        processes=processes,
        out=out,
    )
    print_outcome(report.model_dump(mode="json"), render(report), as_json=as_json)
    if report.overall.failures or not report.overall.requests:
        raise typer.Exit(1)


def scenarios(*, as_json: JsonOption = False) -> None:
    """List the scenarios that come with the package."""
    print_outcome(
        {each.name: each for each in SCENARIOS},
        *(f"{each.name:<10} {each.title}" for each in SCENARIOS),
        as_json=as_json,
    )


def locustfile() -> None:
    """Print the path of the locustfile, for Locust's web page and for several machines."""
    with needs_extra("loadtest"):
        from nunatak_loadtest.process import LOCUSTFILE
    print(LOCUSTFILE)  # noqa: T201 - a path that a shell reads stays on one line


loadtest_app = group(
    "loadtest",
    "Measure throughput, latencies and memory of a server.",
    {
        "run": (run, "nunatak loadtest run single --server http://127.0.0.1:8080 --out ./measured"),
        "scenarios": (scenarios, "nunatak loadtest scenarios"),
        "locustfile": (locustfile, "nunatak loadtest locustfile"),
    },
)
