"""Options: those that several commands share, those made from settings, and their values.

A parameter of a command may be a class of options: each field of the class is an option.
"""

# ruff: noqa: PLC0415 - a command imports torch when it runs, not for --help

import os
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer
from typer.core import TyperCommand
from typer.main import get_command

from nunatak_contract.enums import OnLong
from nunatak_contract.errors import MissingExtraError, invalid_option
from nunatak_contract.names import TaskReference, check_alias_name
from nunatak_rows import RowFormat

if TYPE_CHECKING:
    from nunatak_model import Backbone


class DeviceName(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


def _without_bars(is_given: bool) -> bool:  # noqa: FBT001 - typer gives it by place
    """Keep the bars of huggingface_hub, which reads this when it is imported, out of the output."""
    if is_given:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    return is_given


NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the task.")]
ReferenceArgument = Annotated[
    str, typer.Argument(metavar="REF", help="Task: name, name@alias or name/version.")
]

VersionArgument = Annotated[
    str, typer.Argument(metavar="NAME/VERSION", help="Task version, such as tone/3.")
]

TasksOption = Annotated[
    list[str],
    typer.Option(
        "--task", metavar="REF", help="Task: name, name@alias or name/version. Repeatable."
    ),
]
AskedServerOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Ask this server. Absent: load the tasks into this process."),
]
ExamplesOption = Annotated[
    Path, typer.Option(metavar="FILE", help="Labelled examples, in any format that training reads.")
]
OnLongOption = Annotated[
    OnLong | None,
    typer.Option(
        help="Treatment of a text with more tokens than the task reads at once. Absent: the task "
        "version decides."
    ),
]
OnOption = Annotated[
    str | None,
    typer.Option(
        metavar="ray[://HOST:PORT]",
        help="Compute on a Ray cluster: the one of this machine or of RAY_ADDRESS, or the one of "
        "this client server. Absent: on this machine.",
    ),
]
RegistryOption = Annotated[
    str | None,
    typer.Option(
        envvar="NUNATAK_REGISTRY",
        metavar="PATH|URL",
        help="Registry folder or database URL. Absent: a folder in your user data directory.",
    ),
]
CreateOption = Annotated[
    bool, typer.Option("--create", help="Make a registry if the place has none, before all work.")
]
_Barless = partial(typer.Option, callback=_without_bars)
JsonOption = Annotated[
    bool, _Barless("--json", help="Print JSON for programs instead of tables for people.")
]
QuietOption = Annotated[
    bool, _Barless("--quiet", help="Show no progress, and nothing of steps that succeed.")
]
_BACKBONES = (
    "Backbone: the built-in 'minilm', the name of an added one (nunatak backbone list), a folder, "
    "or a Hugging Face hub id. Absent: "
)
BackboneOption = Annotated[
    str | None, typer.Option("--backbone", metavar="BACKBONE", help=f"{_BACKBONES}'minilm'.")
]
VersionBackboneOption = Annotated[
    str | None,
    typer.Option(
        metavar="BACKBONE",
        help=f"{_BACKBONES}that of the version, if it is built in or added; else 'minilm'.",
    ),
]
CacheOption = Annotated[
    bool,
    typer.Option(
        "--cache/--no-cache",
        help="Keep the outputs of the shared layers on disk, for later runs (nunatak cache).",
    ),
]
ResumeOption = Annotated[
    bool, typer.Option("--resume/--no-resume", help="Continue a killed run of the same command.")
]
DeviceOption = Annotated[DeviceName, typer.Option(help="Compute on the CPU or a CUDA device.")]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="CPU threads that compute. Absent: as many as find a free CPU."
    ),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Refuse data with warnings, instead of training on it.")
]
KindOption = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="single-label, multi-label, regression, token-classification, question-answering or "
        "ranking. Absent: the columns of the first row decide: text and label (regression if the "
        "label has a decimal point); text and labels; tokens and tags; question, context and "
        "answers; query, document and label.",
    ),
]
EscapeFormulasOption = Annotated[
    bool,
    typer.Option(
        "--escape-formulas",
        help="In CSV, write an apostrophe before texts that a spreadsheet would compute: texts "
        "that begin with =, +, -, @, tab or CR.",
    ),
]


CalibrateOption = Annotated[
    bool,
    typer.Option(
        "--calibrate",
        help="Make the scores probabilities, by a temperature that fits the dev examples (nunatak "
        "task thresholds).",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any setting that `nunatak train --help` lists, such as dropout=0.2. Repeatable.",
    ),
]
ServerOption = Annotated[str, typer.Option(metavar="URL", help="Address of the server.")]
NewAliasOption = Annotated[
    str | None,
    typer.Option(
        metavar="ALIAS",
        help="Point this alias at the new version.",
        callback=lambda given: given if given is None else check_alias_name(given),
    ),
]
RevisionOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Branch, tag or commit on the hub. Absent: the newest."),
]


class OnBadRow(StrEnum):
    REFUSE = "refuse"
    SKIP = "skip"


@dataclass(frozen=True, kw_only=True)
class TextColumns:
    text_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of the text, if it is not `text`.")
    ] = None
    pair_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Column of the second text, if it is not `text_pair`."),
    ] = None
    delimiter: Annotated[
        str | None,
        typer.Option(
            metavar="CHARACTER",
            help="Between the fields of CSV and TSV files. Absent: comma, tab or semicolon, "
            "whichever splits the header line.",
        ),
    ] = None

    @property
    def spelt(self) -> RowFormat:
        delimiter = self.delimiter
        if delimiter is not None:
            delimiter = {"\\t": "\t", "tab": "\t"}.get(delimiter, delimiter)
            if len(delimiter) != 1 or delimiter in {'"', "\n", "\r"}:
                raise invalid_option(
                    f"--delimiter expects one character, such as ';', or tab, got {delimiter!r}"
                )
        return RowFormat(text=self.text_column, pair=self.pair_column, delimiter=delimiter)


@dataclass(frozen=True, kw_only=True)
class LabelledRows(TextColumns):
    """The options of a command that reads labelled rows, and may leave some out."""

    label_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Column of the label, if it is not `label` (or `labels`)."
        ),
    ] = None
    on_bad_row: Annotated[
        OnBadRow,
        typer.Option(
            help="refuse: name all rows that cannot be used, and end; skip: go on without these "
            "rows, and write them with the reasons to DATA.rejected.jsonl in this folder."
        ),
    ] = OnBadRow.REFUSE

    @property
    def spelt(self) -> RowFormat:
        return replace(super().spelt, label=self.label_column)

    def spelt_in(self, data: str) -> RowFormat:
        """Return the format of the rows of `data`, with the file for the bad ones."""
        return self.spelt_of(Path(data.replace(":", "-")).name.split(".")[0] or "data")

    def spelt_of(self, task: str) -> RowFormat:
        """Return the same format; the file for the bad rows has the name of the task."""
        is_skipped = self.on_bad_row is OnBadRow.SKIP
        return replace(self.spelt, rejected=Path(f"{task}.rejected.jsonl") if is_skipped else None)


@dataclass(frozen=True, kw_only=True)
class RegistryOptions:
    registry: RegistryOption = None
    as_json: JsonOption = False


@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    device: DeviceOption = DeviceName.CPU
    threads: ThreadsOption = None

    def prepare(self) -> None:
        """Check that the device exists, and set the number of threads; absent: the free CPUs."""
        from nunatak_model import compute_with, has_cuda

        if self.device is DeviceName.CUDA and not has_cuda():
            raise invalid_option(
                "--device cuda: torch finds no CUDA device here; expected a GPU with its "
                "driver and a torch built for CUDA. Train with --device cpu"
            )
        compute_with(self.threads)

    def backbone(self, named: str | None) -> "Backbone":
        from nunatak_model import DEFAULT_BACKBONE, load_backbone

        return load_backbone(named or DEFAULT_BACKBONE, device=self.device.value)


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each field of its parameters of classes of options."""
    parameters = signature(command).parameters.values()
    classes = {
        it.name: cast("type[Any]", it.annotation)
        for it in parameters
        if is_dataclass(it.annotation)
    }

    @wraps(command)
    def run(**given: object) -> None:
        for name, kind in classes.items():
            given[name] = kind(**{it.name: given.pop(it.name) for it in fields(kind)})
        command(**given)

    # Typer would keep the line breaks of the source within the lines of a terminal.
    paragraphs = (command.__doc__ or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(it.split()) for it in paragraphs)
    run.__signature__ = Signature(  # pyrefly: ignore[missing-attribute] - `inspect` and Typer read it
        [
            _without_value(option)
            for it in parameters
            for option in (_options_of(it.annotation) if it.name in classes else [it])
        ]
    )
    return run


def _without_value(option: Parameter) -> Parameter:
    """Return an option that is given or not: its help must not ask for a value, as Typer's does."""
    kind, *infos = get_args(option.annotation) or (None,)
    if kind is not bool:
        return option
    info: Any = copy(infos[0])
    info.metavar = ""
    return option.replace(annotation=Annotated[bool, info])


def _options_of(kind: type[Any]) -> list[Parameter]:
    return [
        Parameter(it.name, Parameter.KEYWORD_ONLY, default=it.default, annotation=it.type)
        for it in fields(kind)
    ]


class ExportFormat(StrEnum):
    TRANSFORMERS = "transformers"
    SENTENCE_TRANSFORMERS = "sentence-transformers"
    PEFT = "peft"
    HUB = "hub"


def example(command_line: str) -> str:
    return f"Example:  [cyan]{command_line}[/cyan]"


def group(
    name: str,
    purpose: str,
    commands: Mapping[str, tuple[Callable[..., None], str]],
    *,
    shown: str | None = None,
) -> typer.Typer:
    """Return a group of commands by name, each with an example.

    The help of the group has the example of the command `shown`, or of the first command.
    """
    first = shown or next(iter(commands))
    app = typer.Typer(
        name=name, help=purpose, no_args_is_help=True, epilog=example(commands[first][1])
    )
    for command, (function, line) in commands.items():
        app.command(command, epilog=example(line))(spread(function))
    return app


def assignments(option: str, given: Iterable[str] | None) -> dict[str, str]:
    """Return the values of an option such as `--set epochs=3`, by name."""
    values = dict[str, str]()
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise invalid_option(f"{option} expects NAME=VALUE, got {text!r}")
        if name in values:
            raise invalid_option(f"{option} names {name!r} twice")
        values[name] = value
    return values


def settings_given(
    given: Iterable[str] | None, options: Mapping[str, str | bool | None]
) -> dict[str, str]:
    """Return the settings of `--set` together with those of `options`, by the name of the setting.

    A value that is None was not given.
    """
    own = {
        name: "true" if value is True else str(value)
        for name, value in options.items()
        if value is not None
    }
    values = assignments("--set", given)
    for name in own.keys() & values.keys():
        option = f"--{name.replace('_', '-')}"
        raise invalid_option(f"{option} and --set {name} set the same value; give one of them")
    return {**own, **values}


def version_named(reference: str) -> tuple[str, int]:
    found = TaskReference.parse(reference)
    if found.version is None:
        raise invalid_option(f"expected a task version, as in {found.task}/3, got {reference!r}")
    return found.task, found.version


def check_names(option: str, named: Mapping[str, str], known: Mapping[str, str]) -> None:
    unknown = sorted(named.keys() - known.keys())
    if unknown:
        raise invalid_option(
            f"{option} expects one of {', '.join(known)} before =, got {unknown[0]!r}"
        )


def file_set_option(example: str) -> Any:  # noqa: ANN401 - typer.Option has this type
    return typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help=f"A value in place of the file's, in YAML: {example}, by the names of the file. "
        "Repeatable.",
    )


def made_options(wanted: Mapping[str, tuple[Any, Any]]) -> tuple[Any, ...]:
    """Return the options of these names, each made of a type and the description of typer."""

    def options() -> None:
        pass

    parameters = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])
        for name, (kind, option) in wanted.items()
    ]
    options.__signature__ = Signature(parameters)  # pyrefly: ignore[missing-attribute] - `inspect` and Typer read it
    app = typer.Typer(add_completion=False)
    app.command()(options)
    return tuple(get_command(app).params)


class SettingsCommand(TyperCommand):
    """A command with an option for each of some settings; its context holds their values."""

    @staticmethod
    def setting_options() -> tuple[Any, ...]:
        return ()

    # Typer hands in a typer.Context, but names its own private base classes here.
    def get_params(self, ctx: typer.Context) -> list[Any]:  # pyrefly: ignore[bad-override] - see above
        own: list[Any] = super().get_params(ctx)
        try:
            return [*own, *self.setting_options()]
        except MissingExtraError:
            return own

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # pyrefly: ignore[bad-override] - see above
        """Parse the command line; only its help can do without the package of the settings."""
        if not {*ctx.help_option_names} & {*args}:
            self.setting_options()
        return super().parse_args(ctx, args)

    def invoke(self, ctx: typer.Context) -> object:  # pyrefly: ignore[bad-override] - see above
        own = {param.name for param in self.params}
        ctx.obj = {name: ctx.params.pop(name) for name in [*ctx.params] if name not in own}
        return super().invoke(ctx)
