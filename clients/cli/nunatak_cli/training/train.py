"""`nunatak train` and `nunatak train-all`: their options.

`runs` does the work; it imports torch.
"""

# ruff: noqa: PLC0415 - a command imports torch when training starts

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from nunatak_cli.options import (
    BackboneOption,
    CacheOption,
    CreateOption,
    DelimiterOption,
    DeviceName,
    DeviceOption,
    JsonOption,
    KindOption,
    LabelColumnOption,
    NewAliasOption,
    OnBadRow,
    OnBadRowOption,
    PairColumnOption,
    RegistryOption,
    ResumeOption,
    SetOption,
    SettingsCommand,
    StrictOption,
    TextColumnOption,
    ThreadsOption,
    assignments,
    file_set_option,
    labelled_format,
    made_options,
    settings_given,
)
from nunatak_cli.output import console, print_outcome, tell_rejected
from nunatak_cli.registry.registries import publishing_registry
from nunatak_contract.errors import MissingExtraError, NunatakError, needs_extra

if TYPE_CHECKING:
    from nunatak_training.teachers import TeacherChoice

METHOD, RECIPE = "Method", "Recipe (absent: the default of the method)"
SETTINGS = (
    *("method", "layers", "frozen", "size", "rank", "first_layer", "default_label", "max_length"),
    *("on_long", "epochs", "patience", "learning_rate", "calibrate", "seed"),
)
"""The settings that have an option; `--set` sets the others."""


CHOICE = "nunatak.teacher"
"""The place of the choice of a teacher in the context of a command; there is none to train."""


def options_of(*names: str) -> tuple[Any, ...]:
    """Return the options of settings, made from the fields of methods and recipe."""
    with needs_extra("training"):
        from nunatak_training.recipes import recipe_settings
        from nunatak_training.run_settings import all_settings
    wanted = dict[str, tuple[Any, Any]]()
    for setting in all_settings():
        if setting.name in names:
            is_flag = setting.values == "true|false"
            metavar = "VALUE" if " " in setting.values else setting.values
            default = f" ({setting.default})" * (setting.default not in {"null", "not set"})
            wanted[setting.name] = (
                bool | None if is_flag else str | None,
                typer.Option(
                    f"--{setting.name.replace('_', '-')}",
                    metavar=None if is_flag else metavar,
                    help=setting.description + default * (not is_flag),
                    rich_help_panel=RECIPE if setting.name in recipe_settings() else METHOD,
                ),
            )
    return made_options(wanted)


class TrainCommand(SettingsCommand):
    """A command with options of settings, whose help lists every setting of `--set`."""

    setting_options = staticmethod(partial(options_of, *SETTINGS))

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
    context: typer.Context,
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
    settings: SetOption = None,
) -> None:
    """Train a task on your examples and publish it as a new version."""
    named = settings_given(settings, context.obj)
    with needs_extra("training"):
        from nunatak_cli.training.runs import (
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
    choice: TeacherChoice | None = context.meta.get(CHOICE)
    request = TrainSettings(
        task=task,
        data=data,
        teacher=choice,
        kind=kind_named(kind),
        dev=dev,
        note=note,
        settings=read_settings(named),
        promote=promote,
        spelt=labelled_format(
            data,
            on_bad_row,
            text=text_column,
            label=label_column,
            pair=pair_column,
            delimiter=delimiter,
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
    print_outcome(
        outcome_json(outcome, alias=promote),
        outcome_table(outcome),
        published_text(outcome),
        *([] if moved is None else [moved]),
        as_json=as_json,
    )


def train_all(  # noqa: PLR0913 - one parameter per option is how typer works
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="YAML or TOML: tasks by name, each with settings of `train`."
        ),
    ],
    *,
    settings: Annotated[
        list[str] | None, file_set_option("shared.epochs=3 or tasks.tone.layers=1")
    ] = None,
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
        from nunatak_cli.training.runs import (
            in_order,
            prepare_device,
            read_task_file,
            results_json,
            results_table,
            runs_of,
            train_in_turn,
        )
        from nunatak_model import DEFAULT_BACKBONE, load_backbone
    listed = read_task_file(file, assignments("--set", settings))
    prepare_device(device, threads)
    runs = runs_of(listed, file, strict=strict)
    backbone = load_backbone(listed.backbone or DEFAULT_BACKBONE, device=device.value)
    ordered = in_order(runs, file, backbone)
    with publishing_registry(registry, create=create) as opened:
        results = train_in_turn(ordered, opened, backbone, cache=cache, resume=resume)
    print_outcome(results_json(results), results_table(results), as_json=as_json)
    if any(isinstance(found, NunatakError) for _, found in results):
        raise typer.Exit(1)
