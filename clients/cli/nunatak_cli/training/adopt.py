"""`nunatak adopt`: `nunatak train` on texts whose probabilities a teacher gives."""

# ruff: noqa: PLC0415 - a command imports torch when training starts

from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from nunatak_cli.registry.documents import read_question
from nunatak_cli.training.train import CHOICE, train
from nunatak_contract.errors import needs_extra

TEACHER = "Teacher (absent: the texts have the column `probabilities`)"


def _option(metavar: str, told: str, *name: str) -> Any:  # noqa: ANN401 - typer.Option has this type
    return typer.Option(*name, metavar=metavar, help=told, rich_help_panel=TEACHER)


OWN: dict[str, tuple[Any, Any]] = {
    "name": (str, typer.Argument(metavar="NAME", help="Name of the new task.")),
    "texts": (
        str,
        typer.Option(
            metavar="PATH",
            help="Texts as for `train --data`, whose own labels may be absent. The column "
            "`probabilities` is an object of numbers by label.",
        ),
    ),
    "of_task": (str | None, _option("REF", "A task of the registry.", "--from")),
    "teacher_backbone": (
        str | None,
        _option("NAME|PATH|HUB_ID", "Backbone of that task. Absent: the new task's."),
    ),
    "upstream": (
        str | None,
        _option("URL", "A server of decisions: .../v1/systemone (default) or .../v1/decisions."),
    ),
    "question": (
        str | None,
        _option(
            "FILE|CARD",
            "The question for --upstream: a file of a question or of a card, or a card of the "
            "registry.",
        ),
    ),
    "upstream_key": (Path | None, _option("FILE", "File with the key of --upstream.")),
    "upstream_model": (str | None, _option("NAME", "Model of --upstream. Absent: jev-latest.")),
}


def adopt(context: typer.Context, **given: Any) -> None:  # noqa: ANN401 - values of options
    """Train a task on what a teacher says about your texts, and publish it as a new version."""
    own = {name: given.pop(name) for name in OWN}
    with needs_extra("training"):
        from nunatak_training.teachers import TeacherChoice
    question = own["question"]
    context.meta[CHOICE] = TeacherChoice(
        task=own["of_task"],
        backbone=own["teacher_backbone"],
        upstream=own["upstream"],
        question=read_question(Path(question)) if question and Path(question).suffix else question,
        key=own["upstream_key"],
        model=own["upstream_model"] or "jev-latest",
    )
    train(context, task=own["name"], data=own["texts"], **given)


def _signature() -> Signature:
    """The options of `train`, and our own in place of its task and data."""
    context, _, _, *others = signature(train).parameters.values()
    own = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            annotation=Annotated[kind, option],
            default=Parameter.empty if kind is str else None,
        )
        for name, (kind, option) in OWN.items()
    ]
    return Signature([context, *own, *others])


adopt.__signature__ = _signature()  # pyright: ignore[reportFunctionMemberAccess]
