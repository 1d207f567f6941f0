"""`nunatak multitask`: one encoder trained on several tasks, as a new backbone for them."""

# ruff: noqa: PLC0415 - torch is imported when training starts, not for --help

from pathlib import Path
from typing import Annotated

import typer

from nunatak_cli.assignments import assignments, check_names, settings_given
from nunatak_cli.failures import needs_extra
from nunatak_cli.options import (
    BackboneOption,
    EpochsOption,
    JsonOption,
    LearningRateOption,
    ResumeOption,
    SeedOption,
    SetOption,
)
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
    epochs: EpochsOption = None,
    learning_rate: LearningRateOption = None,
    seed: SeedOption = None,
    settings: SetOption = None,
    resume: ResumeOption = True,
) -> None:
    """Train one encoder on several tasks (MT-DNN) and write it as a new backbone."""
    sources, kinds = assignments("--data", data), assignments("--kind", kind)
    check_names("--kind", kinds, sources)
    named = settings_given(settings, epochs=epochs, learning_rate=learning_rate, seed=seed)
    with needs_extra("training"):
        from nunatak_cli.encoder import encoder_json, encoder_table, train_encoder
    outcome = train_encoder(
        sources, kinds, output=output, backbone=backbone, named=named, resumes=resume
    )
    if as_json:
        print_json(encoder_json(outcome))
        return
    console().print(encoder_table(outcome))
    console().print(f"wrote {outcome.folder}; train on it with --backbone {outcome.folder}")
