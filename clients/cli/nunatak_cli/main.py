"""The `nunatak` command: its groups, and nothing that takes time to import."""

from importlib.metadata import version as distribution_version
from typing import Annotated

import typer

from nunatak_cli.commands.cache import cache_app
from nunatak_cli.commands.key import key_app
from nunatak_cli.commands.loadtest import loadtest_app
from nunatak_cli.commands.memory import memory_app
from nunatak_cli.commands.multitask import multitask
from nunatak_cli.commands.predict import predict
from nunatak_cli.commands.serve import serve
from nunatak_cli.commands.sweep import sweep_app
from nunatak_cli.commands.task import task_app
from nunatak_cli.commands.train import TrainCommand, train, train_all
from nunatak_cli.failures import FailureGroup, Program
from nunatak_cli.options import example
from nunatak_cli.output import print_text

VersionOption = Annotated[bool, typer.Option("--version", help="Show the version and leave.")]
EXAMPLES = {
    "nunatak": "nunatak train --task tone --data tone.jsonl",
    "train": "nunatak train --task tone --data tone.jsonl --method topk --layers 2 --promote prod",
    "multitask": "nunatak multitask ./base --data tone=tone.jsonl --data intent=intent.jsonl",
    "train-all": "nunatak train-all tasks.yaml",
    "predict": 'nunatak predict "Please come at once." --task tone --task intent',
    "serve": "nunatak serve --registry ./registry --port 8080",
}


def build_app() -> Program:
    """Put the commands together."""
    built = Program(
        name="nunatak",
        cls=FailureGroup,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=example(EXAMPLES["nunatak"]),
    )
    built.callback(invoke_without_command=True)(start)
    built.command("train", cls=TrainCommand, epilog=example(EXAMPLES["train"]))(train)
    built.command("train-all", epilog=example(EXAMPLES["train-all"]))(train_all)
    for command in (multitask, predict, serve):
        built.command(epilog=example(EXAMPLES[command.__name__]))(command)
    groups = (task_app, memory_app, sweep_app, cache_app, key_app, loadtest_app)
    for group in groups:
        built.add_typer(group())
    return built


def start(*, version: VersionOption = False) -> None:
    """Serve many text tasks from one frozen transformer backbone."""
    if version:
        print_text(f"nunatak {distribution_version('nunatak')}\n")
        raise typer.Exit


app = build_app()
