"""`nunatak train` and `nunatak train-all`: their options.

`training` and `training_all` do the work; they import torch.
"""

# ruff: noqa: PLC0415 - a command imports torch when training starts

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from typer.core import TyperCommand

from nunatak_cli.options import (
    BackboneOption,
    CacheOption,
    CalibrateOption,
    CreateOption,
    DelimiterOption,
    DeviceName,
    DeviceOption,
    EpochsOption,
    JsonOption,
    KindOption,
    LabelColumnOption,
    LearningRateOption,
    NewAliasOption,
    OnBadRow,
    OnBadRowOption,
    PairColumnOption,
    PatienceOption,
    RegistryOption,
    ResumeOption,
    SeedOption,
    SetOption,
    StrictOption,
    TextColumnOption,
    ThreadsOption,
    rejected_file,
    row_format,
    settings_given,
)
from nunatak_cli.output import console, print_json, tell_rejected
from nunatak_cli.registries import publishing_registry
from nunatak_contract.enums import MethodKind, OnLong
from nunatak_contract.errors import MissingExtraError, NunatakError, needs_extra

METHOD = "Method"
RECIPE = "Recipe (absent: the default of the method)"


class TrainCommand(TyperCommand):
    """A command whose help lists every setting of `--set`, from the fields of the recipe."""

    # Typer hands in a typer.Context, but names its own private base class here.
    def format_help(self, ctx: typer.Context, formatter: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().format_help(ctx, formatter)  # pyright: ignore[reportArgumentType]
        try:
            with needs_extra("training"):
                from nunatak_training.run_settings import all_settings
        except MissingExtraError as error:
            console().print(f"Settings of --set: {error}", soft_wrap=True)
            return
        table = Table("--set", "is", "default", "", box=None, header_style="bold", pad_edge=False)
        table.columns[0].no_wrap = True
        for setting in all_settings():
            values = setting.values.replace("|", " | ")
            table.add_row(setting.name, values, setting.default, setting.description)
        console().print(table)


def train(  # noqa: PLR0913 - one parameter per option is how typer works
    *,
    task: Annotated[str, typer.Option(metavar="NAME", help="Name of the task.")],
    data: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="Examples: JSONL, CSV, TSV or Parquet; a folder with train.*, dev.* and "
            "maybe test.*; or the name of a data set on the hub. Columns: see --kind.",
        ),
    ],
    dev: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Examples that choose the best epoch. Absent: a tenth of the data.",
            show_default=False,
        ),
    ] = None,
    kind: KindOption = None,
    text_column: TextColumnOption = None,
    label_column: LabelColumnOption = None,
    pair_column: PairColumnOption = None,
    delimiter: DelimiterOption = None,
    on_bad_row: OnBadRowOption = OnBadRow.REFUSE,
    strict: StrictOption = False,
    registry: RegistryOption = None,
    create: CreateOption = False,
    promote: NewAliasOption = None,
    note: Annotated[str, typer.Option(metavar="TEXT", help="A remark on the version.")] = "",
    as_json: JsonOption = False,
    cache: CacheOption = True,
    resume: ResumeOption = True,
    device: DeviceOption = DeviceName.CPU,
    threads: ThreadsOption = None,
    backbone: BackboneOption = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"What the task owns: {', '.join(MethodKind)} (default: topk).",
            rich_help_panel=METHOD,
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="N|auto",
            help="topk: number of own top layers (2); auto: the fewest that reach `target`.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    frozen: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="topk: number of lowest layers that stay shared, instead of --layers.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="bottleneck: width of the adapters (64).", rich_help_panel=METHOD
        ),
    ] = None,
    rank: Annotated[
        str | None,
        typer.Option(metavar="N", help="lora: rank of the updates (8).", rich_help_panel=METHOD),
    ] = None,
    first_layer: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Methods with adapters: their first layer (0); the layers below stay shared.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    default_label: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL",
            help=(
                "The label that means that nothing was found (of two, the more frequent). A long "
                "text gets the answer of the window where another label is most likely."
            ),
            rich_help_panel=RECIPE,
        ),
    ] = None,
    max_length: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Tokens of a text that the task reads at once.",
            rich_help_panel=RECIPE,
        ),
    ] = None,
    on_long: Annotated[
        OnLong | None,
        typer.Option(
            help=(
                "Treatment of a text with more than --max-length tokens. Absent: windows, and cut "
                "for ranking."
            ),
            rich_help_panel=RECIPE,
        ),
    ] = None,
    epochs: EpochsOption = None,
    patience: PatienceOption = None,
    learning_rate: LearningRateOption = None,
    calibrate: CalibrateOption = False,
    seed: SeedOption = None,
    settings: SetOption = None,
) -> None:
    """Train a task on your examples and publish it as a new version."""
    named = settings_given(
        settings,
        method=method,
        layers=layers,
        frozen=frozen,
        size=size,
        rank=rank,
        first_layer=first_layer,
        default_label=default_label,
        max_length=max_length,
        on_long=on_long,
        epochs=epochs,
        patience=patience,
        learning_rate=learning_rate,
        calibrate="true" if calibrate else None,
        seed=seed,
    )
    with needs_extra("training"):
        from nunatak_cli.training import (
            outcome_json,
            outcome_table,
            prepare_device,
            published_text,
            train_and_promote,
        )
        from nunatak_model import DEFAULT_BACKBONE, load_backbone
        from nunatak_training.kinds import kind_named
        from nunatak_training.run_settings import read_settings
        from nunatak_training.train import TrainSettings
        from nunatak_training.trunk import DiskTrunkStore
    request = TrainSettings(
        task=task,
        data=data,
        kind=kind_named(kind),
        dev=dev,
        note=note,
        settings=read_settings(named),
        promote=promote,
        spelt=row_format(
            text=text_column,
            label=label_column,
            pair=pair_column,
            delimiter=delimiter,
            rejected=rejected_file(on_bad_row, data),
        ),
        strict=strict,
    )
    prepare_device(device, threads)
    with publishing_registry(registry, create=create) as opened:
        outcome, moved = train_and_promote(
            request,
            opened,
            load_backbone(backbone or DEFAULT_BACKBONE, device=device.value),
            trunks=DiskTrunkStore() if cache else None,
            resume=resume,
        )
    tell_rejected(request.spelt)
    if as_json:
        print_json(outcome_json(outcome, alias=promote))
    else:
        console().print(outcome_table(outcome))
        console().print(published_text(outcome))
        if moved is not None:
            console().print(moved)


def train_all(  # noqa: PLR0913 - one parameter per option is how typer works
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="YAML or TOML: tasks by name, each with settings of `train`."
        ),
    ],
    *,
    registry: RegistryOption = None,
    create: CreateOption = False,
    as_json: JsonOption = False,
    cache: CacheOption = True,
    resume: ResumeOption = True,
    device: DeviceOption = DeviceName.CPU,
    threads: ThreadsOption = None,
    strict: StrictOption = False,
) -> None:
    """Train and publish all tasks of a file; a task that fails does not stop the others."""
    with needs_extra("training"):
        from nunatak_cli.training import prepare_device
        from nunatak_cli.training_all import (
            in_order,
            read_task_file,
            results_json,
            results_table,
            runs_of,
            train_in_turn,
        )
        from nunatak_model import DEFAULT_BACKBONE, load_backbone
    listed = read_task_file(file)
    prepare_device(device, threads)
    runs = runs_of(listed, file, strict=strict)
    backbone = load_backbone(listed.backbone or DEFAULT_BACKBONE, device=device.value)
    ordered = in_order(runs, file, backbone)
    with publishing_registry(registry, create=create) as opened:
        results = train_in_turn(ordered, opened, backbone, cache=cache, resume=resume)
    if as_json:
        print_json(results_json(results))
    else:
        console().print(results_table(results))
    if any(isinstance(found, NunatakError) for _, found in results):
        raise typer.Exit(1)
