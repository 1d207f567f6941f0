"""`nunatak sweep`: many training runs from one file, and the tables of their results."""

# ruff: noqa: PLC0415 - a command imports torch when training starts, not for --help

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import JsonValue
from rich.table import Table

from nunatak_cli.options import (
    BackboneOption,
    CalibrateOption,
    CreateOption,
    JsonOption,
    NewAliasOption,
    OnOption,
    RegistryOption,
    ThreadsOption,
    assignments,
    example,
)
from nunatak_cli.output import console, error_console, print_json, print_text
from nunatak_cli.registries import publishing_registry
from nunatak_contract.errors import NunatakError, needs_extra
from nunatak_contract.names import check_alias_name
from nunatak_contract.plain_text import visible

if TYPE_CHECKING:
    from nunatak_training.sweeps import Grid, RunRecord

AXES = "Axes (they replace the axes of the file)"
EXAMPLES = {
    "run": "nunatak sweep run sweep.yaml --results sweep/ --jobs 2",
    "report": "nunatak sweep report sweep/ --out report/",
    "publish": "nunatak sweep publish sweep/ --task tone --promote prod",
}
ResultsArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Results of a sweep.", show_default=False)
]


def sweep_app() -> typer.Typer:
    """Return the group with its commands."""
    app = typer.Typer(
        name="sweep",
        help="Train over a grid of settings and compare.",
        no_args_is_help=True,
        epilog=example(EXAMPLES["run"]),
    )
    for command in (run, report, publish):
        app.command(epilog=example(EXAMPLES[command.__name__]))(command)
    return app


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """The runs of a sweep, described by file and options."""

    file: Path | None
    tasks: tuple[str, ...] = ()
    """Names of tasks of the file, or `name=path`."""
    settings: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """Recipe settings of all runs, by name; they override the file."""
    changes: Mapping[str, JsonValue]
    """The axes that options give; they replace the axes of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    """The place and the method of the runs of a sweep."""

    results: Path
    jobs: int
    device: str
    retry_failed: bool
    on: str | None = None
    threads: int | None = None


def run(  # noqa: PLR0913 - one parameter per option is how typer works
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="Sweep file, YAML or TOML. Absent: the options give all axes."
        ),
    ] = None,
    *,
    results: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Folder of results, one line of JSON per run. The same command continues a "
            "stopped sweep: it skips runs that have a result.",
        ),
    ],
    jobs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Runs at the same time, without --on.")
    ] = 1,
    on: OnOption = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="Device: cpu or cuda.")] = "cpu",
    threads: ThreadsOption = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Repeat the runs that failed.")
    ] = False,
    data_root: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of the tasks' data.", show_default=False),
    ] = None,
    backbone: BackboneOption = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=PATH]",
            help="Only this task of the file; or a task with its examples. Repeatable.",
            rich_help_panel=AXES,
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Method of `train`. Repeatable.", rich_help_panel=AXES),
    ] = None,
    frozen: Annotated[
        str | None,
        typer.Option(
            metavar="N,N", help="topk: lowest layers that stay shared.", rich_help_panel=AXES
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="bottleneck: widths (64).", rich_help_panel=AXES),
    ] = None,
    regularizer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Regularizer of `train`. Repeatable.", rich_help_panel=AXES
        ),
    ] = None,
    tapt_epochs: Annotated[
        str | None,
        typer.Option(
            metavar="N,N",
            help="Epochs of task-adaptive pretraining before fine-tuning; 0: none.",
            rich_help_panel=AXES,
            show_default=False,
        ),
    ] = None,
    learning_rates: Annotated[
        str | None,
        typer.Option(
            metavar="X,X",
            help="Learning rates (the recipe's).",
            rich_help_panel=AXES,
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N,N",
            help="Seeds of initial weights, order and dropout (0); one run for each.",
            rich_help_panel=AXES,
            show_default=False,
        ),
    ] = None,
    train_caps: Annotated[
        str | None,
        typer.Option(metavar="N,all", help="Numbers of train examples.", rich_help_panel=AXES),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of all runs, such as epochs=3; it overrides the file. Repeatable.",
            rich_help_panel=AXES,
        ),
    ] = None,
) -> None:
    """Run every run of a sweep that has no result yet."""
    changes: dict[str, JsonValue] = {
        "data_root": None if data_root is None else str(data_root),
        "backbones": None if backbone is None else [backbone],
        "methods": _method_entries(method, frozen, size),
        "regularizers": None if not regularizer else [{"name": it} for it in regularizer],
        "tapt": _tapt_entries(tapt_epochs),
        "learning_rates": _numbers(learning_rates),
        "seeds": _numbers(seeds),
        "train_caps": _numbers(train_caps),
    }
    with needs_extra("training"):
        from nunatak_model import compute_with
        from nunatak_training.sweeps import Failed
    compute_with(threads)
    records = _sweep_through(
        SweepRequest(
            file=file,
            tasks=tuple(task or ()),
            settings=dict(assignments("--set", settings)),
            changes={name: value for name, value in changes.items() if value is not None},
        ),
        SweepSettings(
            results=results,
            jobs=jobs,
            device=device,
            retry_failed=retry_failed,
            on=on,
            threads=threads,
        ),
    )
    if on is not None:
        console().print(_cost_table(records))
    failures = sum(isinstance(record.outcome, Failed) for record in records)
    console().print(f"{len(records)} runs, {failures} failed: {results}")
    if failures:
        raise typer.Exit(1)


def report(
    results: ResultsArgument,
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for runs.csv, table.md and plots. Absent: print the table.",
        ),
    ] = None,
) -> None:
    """Make tables and plots from the results of a sweep, even while the sweep still runs."""
    with needs_extra("training"):
        from nunatak_training.sweeps import cells_markdown, cells_of, in_order, write_report
    records = _existing_records(results)
    if out is None:
        print_text(cells_markdown(cells_of(in_order(records))))
        return
    for path in write_report(records, out):
        console().print(str(path))


def publish(  # noqa: PLR0913 - one parameter per option is how typer works
    results: ResultsArgument,
    *,
    task: Annotated[str, typer.Option(metavar="NAME", help="Name of the task in the registry.")],
    of: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Task of the sweep. Absent: its only one.", show_default=False
        ),
    ] = None,
    registry: RegistryOption = None,
    create: CreateOption = False,
    promote: NewAliasOption = None,
    note: Annotated[str, typer.Option(metavar="TEXT", help="A remark on the version.")] = "",
    calibrate: CalibrateOption = False,
    as_json: JsonOption = False,
    device: Annotated[str, typer.Option(metavar="NAME", help="Device: cpu or cuda.")] = "cpu",
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="CPU threads that compute. Absent: as in the sweep.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Train the run with the best dev score again, with its seed, and publish it."""
    with needs_extra("training"):
        from nunatak_model import compute_with
        from nunatak_training.sweeps import RunContext, best_run, publish_best, run_text
    if promote is not None:
        check_alias_name(promote)
    best = best_run(_existing_records(results), task=of)
    recorded = best.environment.get("threads")
    compute_with(threads or (recorded if isinstance(recorded, int) else None))
    error_console().print(f"best by dev score: {run_text(best.run)}; trained again")
    with publishing_registry(registry, create=create) as opened:
        context = RunContext(device=device)
        found = publish_best(best, opened, context, task=task, note=note, calibrate=calibrate)
        if promote is not None:
            opened.promote(task, promote, found.manifest.version)
    if as_json:
        print_json(
            {
                "reference": found.manifest.reference,
                "run": best.run.digest,
                "metric": found.metric,
                "dev_score": found.score,
                "dev_score_in_sweep": found.sweep_score,
            }
        )
        return
    console().print(f"dev {found.metric} {found.score:.4f}, in the sweep {found.sweep_score:.4f}")
    console().print(f"published {found.manifest.reference}")
    if promote is not None:
        console().print(f"{task}@{promote} -> version {found.manifest.version}")


def _numbers(text: str | None) -> list[JsonValue] | None:
    """Split a list of values at its commas; the grid checks the values."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _tapt_entries(epochs: str | None) -> list[JsonValue] | None:
    """Return the settings of pretraining for each number of epochs; 0 means no pretraining."""
    counts = _numbers(epochs)
    if counts is None:
        return None
    return [None if count == "0" else {"epochs": count} for count in counts]


def _method_entries(
    methods: list[str] | None, frozen: str | None, size: str | None
) -> list[JsonValue] | None:
    """Return the methods that the options name, or None if they name none.

    Raises:
        NunatakError: `invalid_option`, an option belongs to a method that the options do not name.
    """
    names = list(methods or ())
    of_method = {"topk": ("frozen", _numbers(frozen)), "bottleneck": ("size", _numbers(size))}
    for owner, (option, values) in of_method.items():
        if values is not None and owner not in names:
            if names:
                raise NunatakError(
                    "invalid_option", problem=f"--{option} belongs to --method {owner}"
                )
            names.append(owner)
    entries: list[JsonValue] = []
    for name in names:
        option, values = of_method.get(name, ("", None))
        entries.append({"kind": name} if values is None else {"kind": name, option: values})
    return entries or None


def _sweep_through(request: SweepRequest, settings: SweepSettings) -> "tuple[RunRecord, ...]":
    """Run every run that has no result yet; return the records of all runs."""
    from nunatak_training.sweeps import (
        InProcesses,
        OneByOne,
        ResultsFolder,
        RunContext,
        SweepProgress,
        plan_runs,
        run_sweep,
    )

    grid = grid_of(request)
    context = RunContext(device=settings.device)
    runs = plan_runs(grid, backbone_of=context.backbone, data_of=context.data)
    results = ResultsFolder(settings.results)
    if settings.retry_failed:
        results.drop_failures()
    progress = SweepProgress(grid.name)
    if settings.on is not None:
        with needs_extra("ray"):
            from nunatak_cluster.runs import OnRay
            from nunatak_cluster.session import joined
        if settings.jobs != 1:
            problem = "--jobs counts local processes; with --on, --threads gives the cores of a run"
            raise NunatakError("invalid_option", problem=problem)
        spread = OnRay(
            checkpoints=results.path.absolute(),
            threads=settings.threads or 1,
            device=settings.device,
        )
        with joined(settings.on):
            return run_sweep(runs, results, spread, progress)
    runner = (
        OneByOne(context)
        if settings.jobs == 1
        else InProcesses(jobs=settings.jobs, device=settings.device)
    )
    return run_sweep(runs, results, runner, progress)


def _cost_table(records: "Iterable[RunRecord]") -> Table:
    """Return a row for each run: its score, what it cost, and where it ran."""
    from nunatak_training.sweeps import Finished, run_text

    table = Table("run", "score", "time", "CPU time", "node", box=None)
    for record in records:
        outcome = record.outcome
        score = (
            f"{outcome.metric} {outcome.score:.4f}"
            if isinstance(outcome, Finished)
            else f"failed [{outcome.code}]"
        )
        table.add_row(
            visible(run_text(record.run)),
            score,
            f"{record.seconds:.1f} s",
            f"{record.cpu_seconds:.1f} s",
            visible(str(record.environment.get("node", ""))),
        )
    return table


def grid_of(request: SweepRequest) -> "Grid":
    """Read the sweep file and apply the options to it.

    Raises:
        NunatakError: `invalid_sweep`, file and options do not make a sweep.
    """
    from nunatak_training.settings import overlaid
    from nunatak_training.sweeps import read_grid

    changes = dict(request.changes)
    pairs = [name.partition("=") for name in request.tasks if "=" in name]
    if pairs:
        changes["tasks"] = [{"name": name, "data": path} for name, _, path in pairs]
    grid = read_grid(request.file, changes)
    overrides = overlaid(grid.overrides, request.settings)
    grid = grid.model_copy(update={"overrides": overrides})
    return _with_tasks(grid, frozenset(name for name in request.tasks if "=" not in name))


def _with_tasks(grid: "Grid", names: frozenset[str]) -> "Grid":
    """Return the grid with only the named tasks; no names keep all tasks."""
    if not names:
        return grid
    unknown = names - {task.name for task in grid.tasks}
    if unknown:
        known = ", ".join(task.name for task in grid.tasks)
        raise NunatakError(
            "invalid_sweep",
            where="--task",
            problem=f"expected one of {known}, got {min(unknown)!r}",
        )
    kept = tuple(task for task in grid.tasks if task.name in names)
    return grid.model_copy(update={"tasks": kept})


def _existing_records(results: Path) -> "tuple[RunRecord, ...]":
    """Read a results folder.

    Raises:
        NunatakError: `invalid_sweep`, the folder holds no result.
    """
    from nunatak_training.sweeps import ResultsFolder

    records = ResultsFolder(results).records()
    if not records:
        raise NunatakError(
            "invalid_sweep", where=str(results), problem="expected a folder with results of a sweep"
        )
    return records
