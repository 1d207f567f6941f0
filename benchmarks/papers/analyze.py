"""The papers' figures, from the results of a sweep, or from tasks that the program trains.

    python -m benchmarks.papers.analyze robustness sweep/ --out robustness/
    python -m benchmarks.papers.analyze rsa sweep.yaml --task cola --seed 0 --out rsa/

Each analysis writes a table (CSV and Markdown) and a plot into `--out`.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from benchmarks.papers.model_findings import NUM_TOKENS, analyze_landscape, analyze_rsa
from benchmarks.papers.sweep_findings import (
    Findings,
    analyze_lowresource,
    analyze_robustness,
    save_findings,
)
from nunatak_contract.errors import NunatakError
from nunatak_training.sweeps.planning import Run, plan_runs, read_grid
from nunatak_training.sweeps.results import ResultsFolder, RunRecord
from nunatak_training.sweeps.running import RunContext

OF_RESULTS: Mapping[str, tuple[str, Callable[[Sequence[RunRecord]], Findings]]] = {
    "robustness": ("scores over seeds at each learning rate, as box plots", analyze_robustness),
    "lowresource": ("gain of each method over full fine-tuning", analyze_lowresource),
}
OF_TRAINED = {
    "rsa": "similarity of each layer's representations before and after training",
    "landscape": "dev loss along the line from before training through the trained task",
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="analysis", required=True)
    for name, (about, _) in OF_RESULTS.items():
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument("results", type=Path, help="folder with the results of a sweep")
        command.add_argument("--out", type=Path, required=True)
    for name, about in OF_TRAINED.items():
        command = commands.add_parser(name, help=about, description=about)
        add_sweep_options(command)
        if name == "rsa":
            command.add_argument("--tokens", type=int, default=NUM_TOKENS, help="3 at least")
    options = parser.parse_args(arguments)
    try:
        findings = find(options)
    except NunatakError as error:
        sys.exit(f"error [{error.code}]: {error}")
    paths = save_findings(findings, options.out)
    print(findings.markdown(), *paths, sep="\n")


def add_sweep_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", type=Path, help="sweep file; its runs are trained here")
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--task", action="append", help="this task alone; repeatable")
    command.add_argument("--seed", type=int, help="in place of the file's seeds")
    command.add_argument("--data-root", type=Path, help="where the tasks' data lie")
    command.add_argument("--device", default="cpu", help="cpu or cuda")


def find(options: argparse.Namespace) -> Findings:
    if options.analysis in OF_RESULTS:
        _, analyze = OF_RESULTS[options.analysis]
        return analyze(ResultsFolder(options.results).records())
    runs, context = planned(options)
    if options.analysis == "rsa":
        return analyze_rsa(runs, context, num_tokens=options.tokens)
    return analyze_landscape(runs, context)


def planned(options: argparse.Namespace) -> tuple[tuple[Run, ...], RunContext]:
    changes: dict[str, JsonValue] = {}
    if options.seed is not None:
        changes["seeds"] = [options.seed]
    if options.data_root is not None:
        changes["data_root"] = str(options.data_root)
    grid = read_grid(options.file, changes)
    if options.task:
        unknown = set(options.task) - {task.name for task in grid.tasks}
        if unknown:
            known = ", ".join(task.name for task in grid.tasks)
            sys.exit(f"--task: expected one of {known}, got {min(unknown)!r}")
        kept = tuple(task for task in grid.tasks if task.name in options.task)
        grid = grid.model_copy(update={"tasks": kept})
    context = RunContext(device=options.device)
    return plan_runs(grid, backbone_of=context.backbone, data_of=context.data), context


if __name__ == "__main__":
    main()
