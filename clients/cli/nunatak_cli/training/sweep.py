"""`nunatak sweep`: many training runs from one file, and the tables of their results."""

# ruff: noqa: PLC0415 - a command imports torch when training starts, not for --help

from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.table import Table

from nunatak_cli import options
from nunatak_cli.output import plain_table, print_failure, print_outcome, print_part, print_text
from nunatak_cli.registry import registries
from nunatak_contract.errors import NunatakError, invalid_option, needs_extra
from nunatak_contract.plain_text import counted, visible
from nunatak_contract.progress import shown_progress

if TYPE_CHECKING:
    from nunatak_training.sweeps.results import Finished, RunRecord
    from nunatak_training.sweeps.running import Runner

ResultsArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="Results of a sweep.")]


def run(  # noqa: PLR0913 - one parameter per option is how typer works
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Sweep file, YAML or TOML.")],
    *,
    results: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Folder of results, one line of JSON per run. The same command continues a "
            "stopped sweep: it skips runs that have a result.",
        ),
    ],
    settings: Annotated[
        list[str] | None,
        options.file_set_option("seeds=[0,1], data_root=data/ or overrides.epochs=3"),
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Runs at the same time, without --on.")
    ] = 1,
    on: options.OnOption = None,
    compute: options.ComputeOptions,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Repeat the runs that failed.")
    ] = False,
    quiet: options.QuietOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Run every run of a sweep that has no result yet."""
    given = options.assignments("--set", settings)
    with needs_extra("training"):
        from nunatak_training.sweeps import planning, running
        from nunatak_training.sweeps.reporting import run_text
        from nunatak_training.sweeps.results import Failed, ResultsFolder
    compute.prepare()
    device, threads = compute.device.value, compute.threads
    grid = planning.read_grid(file, texts=given)
    context = running.RunContext(device=device)
    runs = planning.plan_runs(grid, backbone_of=context.backbone, data_of=context.data)
    kept = ResultsFolder(results)
    with ExitStack() as held:
        if on is not None:
            runner = _on_cluster(on, held, results, jobs=jobs, threads=threads, device=device)
        elif jobs == 1:
            runner = partial(map, context.run)
        else:
            runner = running.InProcesses(jobs=jobs, device=device)
        progress = held.enter_context(shown_progress(quiet=quiet, as_json=as_json))
        records = running.run_sweep(runs, kept, runner, progress, retries_failed=retry_failed)
    failures = [(it.run, it.outcome) for it in records if isinstance(it.outcome, Failed)]
    for found, failure in failures:
        print_failure(failure.code, f"{run_text(found)}: {failure.message}")
    print_outcome(
        {"runs": len(records), "failed": len(failures), "results": str(results)},
        *([] if on is None else [_cost_table(records)]),
        f"{counted(len(records), 'run')}, {len(failures)} failed: {results}",
        as_json=as_json,
    )
    if failures:
        raise typer.Exit(1)


def _on_cluster(
    on: str, held: ExitStack, results: Path, *, jobs: int, threads: int | None, device: str
) -> "Runner":
    with needs_extra("ray"):
        from nunatak_cluster.runs import OnRay
        from nunatak_cluster.session import joined
    if jobs != 1:
        problem = "--jobs counts local processes; with --on, --threads gives the cores of a run"
        raise invalid_option(problem)
    held.enter_context(joined(on))
    return OnRay(checkpoints=results.absolute(), threads=threads or 1, device=device)


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
        from nunatak_training.sweeps.reporting import (
            cells_markdown,
            cells_of,
            in_order,
            write_report,
        )
    records = _existing_records(results)
    if out is None:
        print_text(cells_markdown(cells_of(in_order(records))))
        return
    for path in write_report(records, out):
        print_part(str(path))


def publish(  # noqa: PLR0913 - one parameter per option is how typer works
    results: ResultsArgument,
    *,
    task: Annotated[str, typer.Option(metavar="NAME", help="Name of the task in the registry.")],
    of: Annotated[
        str | None, typer.Option(metavar="NAME", help="Task of the sweep. Absent: its only one.")
    ] = None,
    registry: options.RegistryOption = None,
    create: options.CreateOption = False,
    promote: options.NewAliasOption = None,
    note: Annotated[str, typer.Option(metavar="TEXT", help="A remark on the version.")] = "",
    calibrate: options.CalibrateOption = False,
    quiet: options.QuietOption = False,
    as_json: options.JsonOption = False,
    device: options.DeviceOption = options.DeviceName.CPU,
    threads: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="CPU threads that compute. Absent: as in the sweep."),
    ] = None,
) -> None:
    """Train the run with the best dev score again, with its seed, and publish it."""
    with needs_extra("training"):
        from nunatak_training.report import Report
        from nunatak_training.sweeps.reporting import run_text
        from nunatak_training.sweeps.running import RunContext, best_run, publish_best
    best = best_run(_existing_records(results), task=of)
    recorded = best.environment.get("threads")
    threads = threads or (recorded if isinstance(recorded, int) else None)
    options.ComputeOptions(device=device, threads=threads).prepare()
    with (
        registries.publishing_registry(registry, create=create) as opened,
        shown_progress(quiet=quiet, as_json=as_json) as progress,
    ):
        progress.tell(f"best by dev score: {run_text(best.run)}; trained again")
        context, report = RunContext(device=device.value), Report(task, progress)
        found = publish_best(
            best, opened, context, task=task, note=note, calibrate=calibrate, report=report
        )
        moved = registries.promoted(opened, task, promote, found.manifest.version)
    score = found.manifest.metrics[0]
    in_sweep = cast("Finished", best.outcome).scores[score.name]
    lines = [
        f"dev {score.name} {score.value:.4f}, in the sweep {in_sweep:.4f}",
        registries.published_line(found.manifest.reference, is_new=found.is_new),
        *moved,
    ]
    document = {
        "reference": found.manifest.reference,
        "is_new": found.is_new,
        "alias": promote,
        "run": best.run.digest,
        "metric": score.name,
        "dev_score": score.value,
        "dev_score_in_sweep": in_sweep,
    }
    print_outcome(document, *lines, as_json=as_json)


def _cost_table(records: "Iterable[RunRecord]") -> Table:
    from nunatak_training.sweeps.reporting import run_text
    from nunatak_training.sweeps.results import Finished

    table = plain_table("run", "score", "time", "CPU time", "node")
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


def _existing_records(results: Path) -> "tuple[RunRecord, ...]":
    from nunatak_training.sweeps.results import ResultsFolder

    records = ResultsFolder(results).records()
    if not records:
        raise NunatakError(
            "invalid_sweep", where=str(results), problem="expected a folder with results of a sweep"
        )
    return records


sweep_app = options.group(
    "sweep",
    "Train over a grid of settings and compare.",
    {
        "run": (run, "nunatak sweep run sweep.yaml --results sweep/ --jobs 2"),
        "report": (report, "nunatak sweep report sweep/ --out report/"),
        "publish": (publish, "nunatak sweep publish sweep/ --task tone --promote prod"),
    },
)
