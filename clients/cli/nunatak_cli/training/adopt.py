"""`nunatak adopt`: `nunatak train` on texts whose probabilities a teacher gives."""

# ruff: noqa: PLC0415 - a command imports torch when training starts

from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from nunatak_cli.registry.documents import read_question
from nunatak_cli.training.train import CHOICE, train
from nunatak_contract.errors import needs_extra

FILE_ENDS: Final = (".json", ".yaml", ".yml", ".toml")


def _option(metavar: str, told: str, *name: str) -> Any:  # noqa: ANN401 - typer.Option has this type
    panel = "Teacher (absent: the texts have the column `probabilities`)"
    return typer.Option(*name, metavar=metavar, help=told, rich_help_panel=panel)


def adopt(  # noqa: PLR0913 - one parameter per option is how typer works
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new task.")],
    *,
    texts: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="Texts as for `train --data`, whose own labels may be absent. The column "
            "`probabilities` is an object of numbers by label.",
        ),
    ],
    of_task: Annotated[str | None, _option("REF", "A task of the registry.", "--from")] = None,
    teacher_backbone: Annotated[
        str | None, _option("NAME|PATH|HUB_ID", "Backbone of that task. Absent: the new task's.")
    ] = None,
    upstream: Annotated[
        str | None,
        _option("URL", "A server of decisions: .../v1/systemone (default) or .../v1/decisions."),
    ] = None,
    question: Annotated[
        str | None,
        _option(
            "FILE|CARD", "The question for --upstream: its file, or a card (as a file or by name)."
        ),
    ] = None,
    upstream_key: Annotated[
        Path | None, _option("FILE", "File with the key of --upstream.")
    ] = None,
    upstream_model: Annotated[
        str | None, _option("NAME", "Model of --upstream. Absent: jev-latest.")
    ] = None,
    **of_train: Any,  # noqa: ANN401 - values of options
) -> None:
    """Train a task on what a teacher says about your texts, and publish it as a new version."""
    with needs_extra("training"):
        from nunatak_training.teachers import TeacherChoice
    # The name of a card may have a dot, and never a slash.
    is_file = "/" in (question or "") or Path(question or "").suffix in FILE_ENDS
    context.meta[CHOICE] = TeacherChoice(
        task=of_task,
        backbone=teacher_backbone,
        upstream=upstream,
        question=read_question(Path(question)) if question and is_file else question,
        key=upstream_key,
        model=upstream_model,
    )
    train(context, task=name, data=texts, **of_train)


OWN: Final = [
    it for it in signature(adopt).parameters.values() if it.kind is not Parameter.VAR_KEYWORD
]
GIVEN: Final = {"context", "task", "data"}
OF_TRAIN: Final = [it for it in signature(train).parameters.values() if it.name not in GIVEN]
adopt.__signature__ = Signature([*OWN, *OF_TRAIN])  # pyright: ignore[reportFunctionMemberAccess]
