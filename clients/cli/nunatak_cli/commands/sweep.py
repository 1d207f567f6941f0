"""`nunatak sweep`: many runs from one file, and the tables of their results."""

# ruff: noqa: PLC0415 - torch is imported when training starts, not for --help

from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue

from nunatak_cli.assignments import assignments
from nunatak_cli.errors import InvalidOptionError
from nunatak_cli.failures import needs_extra
from nunatak_cli.options import BackboneOption, example
from nunatak_cli.output import console, print_text

AXES = "Axes (in place of those of the file)"
EXAMPLES = {
    "run": "nunatak sweep run sweep.yaml --results sweep/ --jobs 2",
    "report": "nunatak sweep report sweep/ --out report/",
}
ResultsArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Results of a sweep.", show_default=False)
]


def sweep_app() -> typer.Typer:
    """Put the commands together."""
    built = typer.Typer(
        name="sweep",
        help="Train over a grid of settings and compare.",
        no_args_is_help=True,
        epilog=example(EXAMPLES["run"]),
    )
    for command in (run, report):
        built.command(epilog=example(EXAMPLES[command.__name__]))(command)
    return built


def run(  # noqa: PLR0913 - one parameter per option is how typer works
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="Sweep file, YAML or TOML. Absent: options say it all."
        ),
    ] = None,
    *,
    results: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="One line of JSON a run. What is there is not run again, so a sweep that was "
            "stopped goes on.",
        ),
    ],
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Runs at a time.")] = 1,
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu or cuda.")] = "cpu",
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try the runs that failed again.")
    ] = False,
    data_root: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where the tasks' data lie.", show_default=False),
    ] = None,
    backbone: BackboneOption = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=PATH]",
            help="Of the file, this task alone; or a task with its examples. Repeatable.",
            rich_help_panel=AXES,
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="As of `train`. Repeatable.", rich_help_panel=AXES),
    ] = None,
    frozen: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="topk: layers that stay shared.", rich_help_panel=AXES),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="bottleneck: widths (64).", rich_help_panel=AXES),
    ] = None,
    regularizer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="As of `train`. Repeatable.", rich_help_panel=AXES),
    ] = None,
    tapt_epochs: Annotated[
        str | None,
        typer.Option(
            metavar="N,N",
            help="Task-adaptive pretraining before the tuning; 0: without.",
            rich_help_panel=AXES,
            show_default=False,
        ),
    ] = None,
    learning_rates: Annotated[
        str | None,
        typer.Option(
            metavar="X,X",
            help="Of what the method tunes (those of the recipe).",
            rich_help_panel=AXES,
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N,N",
            help="One run for each: of initial weights, order and dropout (0).",
            rich_help_panel=AXES,
            show_default=False,
        ),
    ] = None,
    train_caps: Annotated[
        str | None,
        typer.Option(metavar="N,all", help="Train examples to learn from.", rich_help_panel=AXES),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of all runs, whatever the file says, as in epochs=3. Repeatable.",
            rich_help_panel=AXES,
        ),
    ] = None,
) -> None:
    """Do all runs of a sweep that have no result yet."""
    changes: dict[str, JsonValue] = {
        "data_root": None if data_root is None else str(data_root),
        "backbones": None if backbone is None else [backbone],
        "methods": method_entries(method, frozen, size),
        "regularizers": None if not regularizer else [{"name": it} for it in regularizer],
        "tapt": tapt_entries(tapt_epochs),
        "learning_rates": numbers(learning_rates),
        "seeds": numbers(seeds),
        "train_caps": numbers(train_caps),
    }
    with needs_extra("training"):
        from nunatak_cli.sweeping import SweepRequest, SweepSettings, sweep_failures, sweep_through
    records = sweep_through(
        SweepRequest(
            file=file,
            tasks=tuple(task or ()),
            settings=dict(assignments("--set", settings)),
            changes={name: value for name, value in changes.items() if value is not None},
        ),
        SweepSettings(results=results, jobs=jobs, device=device, retry_failed=retry_failed),
    )
    console().print(f"{len(records)} runs, {sweep_failures(records)} failed: {results}")
    if sweep_failures(records):
        raise typer.Exit(1)


def report(
    results: ResultsArgument,
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="For runs.csv, table.md and plots. Absent: the table is printed."
        ),
    ] = None,
) -> None:
    """Make tables and plots from the results of a sweep, also while it goes on."""
    with needs_extra("training"):
        from nunatak_cli.sweeping import sweep_table, write_sweep_report
    if out is None:
        print_text(sweep_table(results))
        return
    for path in write_sweep_report(results, out):
        console().print(str(path))


def numbers(text: str | None) -> list[JsonValue] | None:
    """Read values with commas between them; what is no number stays a text."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def tapt_entries(epochs: str | None) -> list[JsonValue] | None:
    """Return the settings of pretraining for each number of epochs; 0 is to go without."""
    named = numbers(epochs)
    return None if named is None else [None if it == "0" else {"epochs": it} for it in named]


def method_entries(
    methods: list[str] | None, frozen: str | None, size: str | None
) -> list[JsonValue] | None:
    """Return the methods that the options name; None if they name none.

    Raises:
        InvalidOptionError: an option of a method that is not named.
    """
    names = list(methods or ())
    of_method = {"topk": ("frozen", numbers(frozen)), "bottleneck": ("size", numbers(size))}
    for owner, (option, values) in of_method.items():
        if values is not None and owner not in names:
            if names:
                raise InvalidOptionError(f"--{option} belongs to --method {owner}")
            names.append(owner)
    entries: list[JsonValue] = []
    for name in names:
        option, values = of_method.get(name, ("", None))
        entries.append({"kind": name} if values is None else {"kind": name, option: values})
    return entries or None
