"""Options that several commands share, so that they are called and explained alike."""

from enum import StrEnum
from typing import Annotated

import typer

RegistryOption = Annotated[
    str | None,
    typer.Option(
        "--registry",
        envvar="NUNATAK_REGISTRY",
        metavar="PATH|URL",
        help="Registry folder or database URL. Absent: a folder in your user data directory.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON for programs instead of tables for people.")
]
BackboneOption = Annotated[
    str | None,
    typer.Option(
        "--backbone",
        metavar="minilm|PATH|HUB_ID",
        help="Backbone: the built-in 'minilm' (default), a folder, or a Hugging Face hub id.",
        show_default=False,
    ),
]
CacheOption = Annotated[
    bool,
    typer.Option(
        "--cache/--no-cache",
        help="Keep what the shared layers make of the texts on disk, for later runs "
        "(nunatak cache).",
    ),
]
ResumeOption = Annotated[
    bool,
    typer.Option("--resume/--no-resume", help="Go on where the same command was killed."),
]
KindOption = Annotated[
    str | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        help="single-label, multi-label, regression, token-classification, question-answering or "
        "ranking. Absent: by the columns of the first row: text and label (a number with a decimal "
        "point: regression); text and labels; tokens and tags; question, context and answers; "
        "query, document and label.",
        show_default=False,
    ),
]
EpochsOption = Annotated[
    str | None, typer.Option("--epochs", metavar="N", help="Passes over the train examples.")
]
LearningRateOption = Annotated[
    str | None,
    typer.Option("--learning-rate", metavar="X", help="Of the layers, or of a head alone."),
]
SeedOption = Annotated[
    str | None, typer.Option("--seed", metavar="N", help="Same seed, same weights.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any setting of `nunatak train --help`, as in dropout=0.2. Repeatable.",
        show_default=False,
    ),
]
AliasOption = Annotated[str, typer.Option("--alias", metavar="ALIAS", help="Alias to move.")]
UnprobedOption = Annotated[
    bool,
    typer.Option("--unprobed", help="Do not run it first, as where its backbone is not at hand."),
]
ExpectOption = Annotated[
    int | None,
    typer.Option(
        "--expect",
        metavar="N",
        min=0,
        help="Move only if the alias is at version N now (0: does not exist yet).",
        show_default=False,
    ),
]
NewAliasOption = Annotated[
    str | None,
    typer.Option(
        "--promote",
        metavar="ALIAS",
        help="Then point this alias at the version.",
        show_default=False,
    ),
]
RevisionOption = Annotated[
    str | None,
    typer.Option(
        "--revision",
        metavar="NAME",
        help="Branch, tag or commit on the hub. Absent: the newest.",
        show_default=False,
    ),
]


class ImportFormat(StrEnum):
    """Whose folders `task import` reads."""

    AUTO = "auto"
    TRANSFORMERS = "transformers"
    PEFT = "peft"
    ADAPTERHUB = "adapterhub"


class LogitUseName(StrEnum):
    """What `task import` makes of a model with one logit."""

    CLASSIFICATION = "classification"
    RANKING = "ranking"


class ExportFormat(StrEnum):
    """What `task export` writes."""

    TRANSFORMERS = "transformers"
    PEFT = "peft"
    HUB = "hub"


class AggregationName(StrEnum):
    """What becomes of labelled tokens that belong together."""

    NONE = "none"
    SIMPLE = "simple"
    FIRST = "first"
    AVERAGE = "average"
    MAX = "max"
    WORD = "word"


class DtypeName(StrEnum):
    """Number formats the server runs in."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class LogFormatName(StrEnum):
    """How the server writes its log."""

    TEXT = "text"
    JSON = "json"


def example(command_line: str) -> str:
    """The last line of a command's help."""
    return f"Example:  [cyan]{command_line}[/cyan]"
