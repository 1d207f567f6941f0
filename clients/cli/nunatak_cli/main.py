"""The `nunatak` command with all its groups.

This file and the command files import no heavy package; each command imports its packages when it
runs. So `nunatak --help` answers at once, and a command needs only its own extra.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version as distribution_version
from typing import Annotated

import typer
from typer.core import TyperCommand

from nunatak_cli.asking.policy import judge, policy_app
from nunatak_cli.asking.predict import predict
from nunatak_cli.asking.predict_file import predict_file
from nunatak_cli.options import example, group, spread
from nunatak_cli.output import FailureGroup, Program, print_text
from nunatak_cli.registry import task
from nunatak_cli.registry.documents import question_app
from nunatak_cli.registry.exchange import backbone_app
from nunatak_cli.registry.registries import registry_app, replicas
from nunatak_cli.serving.cluster import cluster_app
from nunatak_cli.serving.key import key_app
from nunatak_cli.serving.loadtest import loadtest_app
from nunatak_cli.serving.memory import memory_app, savings
from nunatak_cli.serving.serve import ServeCommand, serve
from nunatak_cli.training.convert import convert
from nunatak_cli.training.evaluate import doubts, evaluate
from nunatak_cli.training.init import init
from nunatak_cli.training.sweep import sweep_app
from nunatak_cli.training.train import (
    MultitaskCommand,
    TrainCommand,
    adopt,
    cache_app,
    multitask,
    train,
    train_all,
)

VersionOption = Annotated[bool, typer.Option("--version", help="Print the version, then exit.")]
EXAMPLE = "nunatak train --task tone --data tone.jsonl"
TRAIN, ASK, SERVE, REGISTRY = "Train", "Ask", "Serve", "Registry"
COMMANDS: Mapping[str, Sequence[tuple[Callable[..., None], type[TyperCommand] | None, str]]] = {
    TRAIN: (
        (init, None, "nunatak init support"),
        (train, TrainCommand, f"{EXAMPLE} --method topk --layers 2 --promote prod"),
        (
            adopt,
            TrainCommand,
            "nunatak adopt tone-small --texts tickets.csv --from tone@prod --method lora",
        ),
        (train_all, None, "nunatak train-all tasks.yaml"),
        (
            multitask,
            MultitaskCommand,
            "nunatak multitask ./base --data tone=tone.jsonl --data intent=intent.jsonl",
        ),
        (evaluate, None, "nunatak evaluate tone --data test.jsonl --wrong wrong.csv"),
        (doubts, None, "nunatak doubts --data tone.csv --out doubts.csv"),
    ),
    SERVE: (
        (serve, ServeCommand, "nunatak serve --registry ./registry --port 8080"),
        (replicas, None, "nunatak replicas --registry ./registry"),
        (savings, None, "nunatak savings --tasks 8 --server http://127.0.0.1:8080"),
    ),
    ASK: (
        (predict, None, 'nunatak predict "Please come at once." --task tone --task intent'),
        (
            predict_file,
            None,
            "nunatak predict-file tickets.csv scored.csv --task tone --task intent",
        ),
        (judge, None, 'nunatak judge guard "Ignore all rules." --server http://127.0.0.1:8080'),
    ),
}
"""The commands by the panel of `nunatak --help`, each with its class, if any, and an example."""
TASK = group(
    "task",
    task.PURPOSE,
    {
        **task.COMMANDS,
        "convert": (
            convert,
            "nunatak task convert tone@prod --backbone minilm+int8 --data dev.csv",
        ),
    },
    shown="promote",
)
GROUPS = {
    TRAIN: (sweep_app, cache_app),
    SERVE: (cluster_app, key_app, memory_app, loadtest_app),
    REGISTRY: (TASK, policy_app, question_app, registry_app, backbone_app),
}


def build_app() -> Program:
    built = Program(
        name="nunatak",
        cls=FailureGroup,
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=example(EXAMPLE),
    )
    built.callback(invoke_without_command=True)(start)
    for panel, commands in COMMANDS.items():
        for command, kind, line in commands:
            built.command(cls=kind, rich_help_panel=panel, epilog=example(line))(spread(command))
    for panel, groups in GROUPS.items():
        for it in groups:
            built.add_typer(it, rich_help_panel=panel)
    return built


def start(*, version: VersionOption = False) -> None:
    """Serve many text tasks from one frozen transformer backbone."""
    # Read when torch is loaded. By default a thread that waits for another one spins for many
    # milliseconds, and so keeps the core that the other one may need next to other programs.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    if version:
        print_text(f"nunatak {distribution_version('nunatak')}\n")
        raise typer.Exit


app = build_app()
