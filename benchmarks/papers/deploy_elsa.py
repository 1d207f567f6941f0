"""Memory that shared frozen layers save in a running server, next to the paper's formula.

The benchmark trains each task of the Elsa sweep again; equal data and recipes give equal bytes. It
publishes all tasks with the same number of frozen layers, serves the tasks from one process, and
reads the server's ledger of resident bytes.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

from benchmarks.harness.recording import Sheet, figures_parser
from nunatak_client import Client, MemoryReport
from nunatak_loadtest.processes import ServerProcess
from nunatak_model import default_head, model_size, parameters_saved
from nunatak_registry import Registry
from nunatak_training.publishing import publish
from nunatak_training.sweeps import (
    Finished,
    ResultsFolder,
    Run,
    RunContext,
    plan_runs,
    read_grid,
)
from nunatak_training.sweeps.tables import num_frozen, run_text

SWEEP = Path(__file__).with_name("elsa.yaml")
SEED = 0


def main() -> None:
    """Measure, compare with the formula, and record the share."""
    parser = figures_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with one folder per set")
    parser.add_argument("--results", type=Path, required=True, help="results of the Elsa sweep")
    parser.add_argument("--sweep", type=Path, default=SWEEP, help="file of the sweep")
    parser.add_argument("--frozen", type=int, default=4)
    arguments = parser.parse_args()
    sheet = Sheet(command="make papers", file=arguments.figures, rounds=1)
    context = RunContext()
    grid = read_grid(arguments.sweep, {"data_root": str(arguments.data), "seeds": [SEED]})
    planned = plan_runs(grid, backbone_of=context.backbone, data_of=context.data)
    runs = [run for run in planned if num_frozen(run.description) == arguments.frozen]
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "registry"
        publish_all(runs, context, folder, ResultsFolder(arguments.results))
        tasks = [run.description.task for run in runs]
        memory = served_memory(folder, tasks, frozen=arguments.frozen)
    formula = mean_formula(runs, context, frozen=arguments.frozen)
    told = f"{len(runs)} full models, saved with {arguments.frozen} layers frozen"
    unit = f"of the bytes of {told}, in the running server"
    sheet.record("paper.elsa.saved_deployed", [memory.saved_share], unit=unit)
    unit = f"of the parameters of {told}, by the paper's formula"
    sheet.record("paper.elsa.saved_formula", [formula], unit=unit)
    print(f"{memory.shared_bytes:,} bytes in place of {memory.dedicated_bytes:,}")


def mean_formula(runs: Sequence[Run], context: RunContext, *, frozen: int) -> float:
    """Return the paper's formula as a mean over the tasks, because their heads differ in size."""
    backbone = context.backbone(runs[0].origin.backbone)
    kinds = [context.data(run.origin.source).data for run in runs]
    heads = [
        default_head(
            backbone,
            kind=data.kind.head,
            num_labels=data.kind.head.fixed_outputs or len(data.labels),
        )
        for data in kinds
    ]
    return mean(
        parameters_saved(model_size(backbone.config, head), num_tasks=len(runs), num_frozen=frozen)
        for head in heads
    )


def publish_all(
    runs: Sequence[Run], context: RunContext, folder: Path, results: ResultsFolder
) -> None:
    """Train and publish each run; print the score next to the score in the sweep."""
    known = {it.run.digest: it.outcome for it in results.records()}
    with Registry.open(folder) as registry:
        for run in runs:
            trained = context.fit(run)
            publish(
                trained,
                registry,
                context.backbone(run.origin.backbone),
                task=run.description.task,
                created_at=datetime.now(UTC),
            )
            score = next(iter(trained.scores.values()))
            before = known.get(run.description.digest)
            swept = f"{before.score:.4f}" if isinstance(before, Finished) else "none"
            print(f"{run_text(run.description)}: {score:.4f} (sweep: {swept})", flush=True)


def served_memory(folder: Path, tasks: Sequence[str], *, frozen: int) -> MemoryReport:
    """Return the ledger of a server with all tasks, and the layers they read, in memory."""
    options, log = ("--backbone-layers", str(frozen)), folder / "server.log"
    with ServerProcess(folder, options=options, log=log) as server, Client(server.url) as client:
        for task in tasks:
            client.preload(task)
        return client.memory()


if __name__ == "__main__":
    main()
