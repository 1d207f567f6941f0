"""`nunatak adopt`: `nunatak train` on texts whose probabilities a teacher gives."""

# ruff: noqa: PLC0415 - a command imports torch when training starts

from collections.abc import Iterator, Sequence
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nunatak_cli.asking.predictors import open_predictor
from nunatak_cli.options import RegistryOption
from nunatak_cli.registry.question import find_card
from nunatak_cli.registry.registries import existing_registry
from nunatak_cli.training.train import ADOPTION, Adoption, train
from nunatak_contract.errors import NunatakError, needs_extra

if TYPE_CHECKING:
    from nunatak_client import TaskResult
    from nunatak_model import TextInput
    from nunatak_training.data.teaching import Teacher

REPLACED = frozenset({"task", "data"})
TEACHER = "Teacher (absent: the texts have the column `probabilities`)"


def _teacher(  # noqa: PLR0913 - one parameter per option is how typer works
    *,
    of_task: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="REF",
            help="A task of the registry: name, name@alias or name/version.",
            rich_help_panel=TEACHER,
        ),
    ] = None,
    teacher_backbone: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|PATH|HUB_ID",
            help="Backbone of the task of --from. Absent: the backbone of the new task.",
            rich_help_panel=TEACHER,
        ),
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A server of decisions; the URL ends in /v1/systemone (default) or /v1/decisions.",
            rich_help_panel=TEACHER,
        ),
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|CARD",
            help="The question for --upstream: a file of a question or card, or a card of the "
            "registry.",
            rich_help_panel=TEACHER,
        ),
    ] = None,
    upstream_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A file with the key of --upstream.", rich_help_panel=TEACHER
        ),
    ] = None,
    upstream_model: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="The model of --upstream to ask.", rich_help_panel=TEACHER
        ),
    ] = "jev-latest",
    kind: str | None = None,
    registry: RegistryOption = None,
    backbone: str | None = None,
) -> "Teacher | None":
    named = [it for it, is_given in (("--from", of_task), ("--upstream", upstream)) if is_given]
    if len(named) > 1 or (question is None) != (upstream is None):
        raise NunatakError(
            "invalid_option",
            problem="expected --from REF, or --upstream URL with --question, or texts with the "
            "column `probabilities`; got "
            + (", ".join([*named, *(["--question"] if question else [])])),
        )
    with needs_extra("training"):
        from nunatak_training.kinds import kind_named
        from nunatak_training.teachers import Upstream, key_in, task_teacher
    if upstream is not None and question is not None:
        return Upstream(
            url=upstream,
            card=find_card(question, registry),
            key=key_in(upstream_key),
            model=upstream_model,
            kind=kind_named(kind),
        ).teacher()
    if of_task is None:
        return None
    from nunatak_client import Parameters

    with existing_registry(registry) as opened:
        manifest = opened.resolve(of_task)

    def ask(inputs: "Sequence[TextInput]") -> "Iterator[TaskResult]":
        own = teacher_backbone or backbone
        with open_predictor(None, registry=registry, backbone=own) as predictor:
            for (result,) in predictor.ask(inputs, [manifest.reference], Parameters()):
                yield result

    return task_teacher(manifest, ask)


def adopt(context: typer.Context, **given: Any) -> None:  # noqa: ANN401 - values of options
    """Train a task on what a teacher says about your texts, and publish it as a new version."""
    teacher = _teacher(**{name: given[name] for name in signature(_teacher).parameters})
    context.meta[ADOPTION] = Adoption(teacher=teacher)
    of_train = {name: it for name, it in given.items() if name in signature(train).parameters}
    train(context, task=given["name"], data=given["texts"], **of_train)


def _options() -> Signature:
    """The options of `train`, and those of the teacher in place of its task and data."""
    own: dict[str, Any] = {
        "name": Annotated[str, typer.Argument(metavar="NAME", help="Name of the new task.")],
        "texts": Annotated[
            str,
            typer.Option(
                metavar="PATH",
                help="Texts as for `train --data`; their own labels may be absent. Texts of a "
                "teacher in a file have the column `probabilities`: an object of numbers by label.",
            ),
        ],
    }
    made = [
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation)
        for name, annotation in own.items()
    ]
    of_train = {it: one for it, one in signature(train).parameters.items() if it not in REPLACED}
    context = of_train.pop("context")
    merged = {**{it.name: it for it in made}, **signature(_teacher).parameters, **of_train}
    return Signature([context.replace(kind=Parameter.POSITIONAL_OR_KEYWORD), *merged.values()])


adopt.__signature__ = _options()  # pyright: ignore[reportFunctionMemberAccess]
