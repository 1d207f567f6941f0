"""`nunatak multitask`: one encoder trained on several tasks, as a new backbone for them."""

# ruff: noqa: PLC0415 - torch is imported when training starts, not for --help

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue

from nunatak_cli.failures import needs_extra
from nunatak_cli.options import BackboneOption, JsonOption, KindName, ResumeOption
from nunatak_cli.output import console, print_json


def multitask(  # noqa: PLR0913 - one parameter per option is how typer works
    output: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder of the backbone.")],
    *,
    data: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=PATH",
            help="A task and its examples, as for `train`; give two or more.",
            show_default=False,
        ),
    ],
    kind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=KIND",
            help="The kind of a task whose first row does not tell it.",
            show_default=False,
        ),
    ] = None,
    backbone: BackboneOption = None,
    as_json: JsonOption = False,
    epochs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Passes over the data of all tasks.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(metavar="X", help="Of the encoder.", show_default=False)
    ] = None,
    head_learning_rate: Annotated[
        float | None, typer.Option(metavar="X", help="Of the heads.", show_default=False)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Examples per step.", show_default=False)
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(min=4, metavar="N", help="Tokens read of a text.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Same seed, same weights.")
    ] = None,
    resume: ResumeOption = True,
) -> None:
    """Train one encoder on several tasks (MT-DNN) and write it as a new backbone."""
    sources, kinds = _pairs("--data", data), _kinds(kind or [])
    unknown = sorted(kinds.keys() - sources.keys())
    if unknown:
        raise typer.BadParameter(f"--kind names {unknown[0]!r}, which no --data does")
    changes: dict[str, JsonValue] = {
        "epochs": epochs,
        "learning_rate": learning_rate,
        "head_learning_rate": head_learning_rate,
        "batch_size": batch_size,
        "max_length": max_length,
        "seed": seed,
    }
    with needs_extra("training"):
        from nunatak_cli.training import train_shared_encoder
        from nunatak_cli.views.multitask import outcome_json, outcome_table
    outcome = train_shared_encoder(
        sources,
        kinds,
        output=output,
        backbone=backbone,
        changes={name: value for name, value in changes.items() if value is not None},
        resumes=resume,
    )
    if as_json:
        print_json(outcome_json(outcome))
        return
    console().print(outcome_table(outcome))
    console().print(f"wrote {outcome.folder}; train on it with --backbone {outcome.folder}")


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    pairs = dict[str, str]()
    for item in given:
        name, separator, value = item.partition("=")
        if not (name and separator and value):
            raise typer.BadParameter(f"{option} must be NAME=..., got {item!r}")
        if name in pairs:
            raise typer.BadParameter(f"{option} names {name!r} twice")
        pairs[name] = value
    return pairs


def _kinds(given: Sequence[str]) -> Mapping[str, KindName]:
    pairs = _pairs("--kind", given)
    for value in pairs.values():
        if value not in set(KindName):
            raise typer.BadParameter(f"--kind must be one of {', '.join(KindName)}, got {value!r}")
    return {name: KindName(value) for name, value in pairs.items()}
