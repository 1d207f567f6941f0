"""`nunatak analyze`: the papers' figures, of a sweep's results or of trained tasks."""

# ruff: noqa: PLC0415 - torch is imported when the work starts, not for --help

from pathlib import Path
from typing import Annotated

import typer

from nunatak_cli.failures import needs_extra
from nunatak_cli.options import example
from nunatak_cli.output import console

EXAMPLES = {
    "curves": "nunatak analyze curves sweep/ --out curves/",
    "robustness": "nunatak analyze robustness sweep/ --out robustness/",
    "lowresource": "nunatak analyze lowresource sweep/ --out lowresource/",
    "rsa": "nunatak analyze rsa sweep.yaml --task cola --out rsa/",
    "landscape": "nunatak analyze landscape sweep.yaml --task cola --out landscape/",
    "transfer": "nunatak analyze transfer english.yaml --test de=de/dev.jsonl --out transfer/",
}
ResultsArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Results of a sweep.", show_default=False)
]
SweepArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="Sweep file; its runs are trained here.", show_default=False
    ),
]
OutOption = Annotated[
    Path, typer.Option(metavar="FOLDER", help="For the table (CSV, Markdown) and the plot.")
]
TaskOption = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="These tasks alone. Repeatable.")
]
DataRootOption = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Where the tasks' data lie.", show_default=False),
]
SeedOption = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="In place of the file's seeds.", show_default=False),
]
DeviceOption = Annotated[str, typer.Option(metavar="NAME", help="cpu or cuda.")]


def analyze_app() -> typer.Typer:
    """Put the commands together."""
    built = typer.Typer(
        name="analyze",
        help="Look into sweeps and trained tasks.",
        no_args_is_help=True,
        epilog=example(EXAMPLES["curves"]),
    )
    for command in (curves, robustness, lowresource, rsa, landscape, transfer):
        built.command(epilog=example(EXAMPLES[command.__name__]))(command)
    return built


def curves(results: ResultsArgument, *, out: OutOption) -> None:
    """Dev loss and score while training goes on."""
    with needs_extra("training"):
        from nunatak_cli.analyzing import existing_records, saved
        from nunatak_training.analysis import analyze_curves
    _show(saved(analyze_curves(existing_records(results)), out))


def robustness(results: ResultsArgument, *, out: OutOption) -> None:
    """Scores over seeds at each learning rate, as box plots."""
    with needs_extra("training"):
        from nunatak_cli.analyzing import existing_records, saved
        from nunatak_training.analysis import analyze_robustness
    _show(saved(analyze_robustness(existing_records(results)), out))


def lowresource(results: ResultsArgument, *, out: OutOption) -> None:
    """Gain of each method over full fine-tuning, by the number of train examples."""
    with needs_extra("training"):
        from nunatak_cli.analyzing import existing_records, saved
        from nunatak_training.analysis import analyze_lowresource
    _show(saved(analyze_lowresource(existing_records(results)), out))


def rsa(
    file: SweepArgument,
    *,
    out: OutOption,
    task: TaskOption = None,
    seed: SeedOption = None,
    data_root: DataRootOption = None,
    device: DeviceOption = "cpu",
    tokens: Annotated[
        int, typer.Option(min=3, metavar="N", help="Tokens of dev examples to compare by.")
    ] = 5000,
) -> None:
    """Similarity of each layer's representations before and after training."""
    with needs_extra("training"):
        from nunatak_cli.analyzing import planned, saved
        from nunatak_training.analysis import analyze_rsa
    runs, bench = planned(file, tasks=task, seed=seed, data_root=data_root, device=device)
    _show(saved(analyze_rsa(runs, bench, num_tokens=tokens), out))


def landscape(
    file: SweepArgument,
    *,
    out: OutOption,
    task: TaskOption = None,
    seed: SeedOption = None,
    data_root: DataRootOption = None,
    device: DeviceOption = "cpu",
) -> None:
    """Dev loss along the line from the parameters before training through those after it."""
    with needs_extra("training"):
        from nunatak_cli.analyzing import planned, saved
        from nunatak_training.analysis import analyze_landscape
    runs, bench = planned(file, tasks=task, seed=seed, data_root=data_root, device=device)
    _show(saved(analyze_landscape(runs, bench), out))


def transfer(
    file: SweepArgument,
    *,
    test: Annotated[
        list[str],
        typer.Option(metavar="NAME=PATH", help="A file of examples to test on. Repeatable."),
    ],
    out: OutOption,
    task: TaskOption = None,
    seed: SeedOption = None,
    data_root: DataRootOption = None,
    device: DeviceOption = "cpu",
) -> None:
    """Train on one set or language, test on others."""
    tests = named_files(test)
    with needs_extra("training"):
        from nunatak_cli.analyzing import planned, saved
        from nunatak_training.analysis import analyze_transfer
    runs, bench = planned(file, tasks=task, seed=seed, data_root=data_root, device=device)
    _show(saved(analyze_transfer(runs, bench, tests), out))


def named_files(named: list[str]) -> dict[str, Path]:
    """Read `name=path` pairs.

    Raises:
        typer.BadParameter: a text is no such pair.
    """
    pairs = [text.partition("=") for text in named]
    for text, (name, _, path) in zip(named, pairs, strict=True):
        if not name or not path:
            raise typer.BadParameter(f"--test takes NAME=PATH, got {text!r}")
    return {name: Path(path) for name, _, path in pairs}


def _show(page: str) -> None:
    console().print(page, end="", soft_wrap=True)
