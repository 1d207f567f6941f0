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
AliasOption = Annotated[str, typer.Option("--alias", metavar="ALIAS", help="Alias to move.")]
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


class MethodName(StrEnum):
    """The methods `train` knows."""

    TOPK = "topk"
    HEAD = "head"
    BOTTLENECK = "bottleneck"
    LORA = "lora"
    FULL = "full"


class MetricName(StrEnum):
    """The metrics a version is chosen by."""

    ACCURACY = "accuracy"
    F1 = "f1"
    F1_MACRO = "f1_macro"
    F1_MICRO = "f1_micro"
    MATTHEWS_CORRELATION = "matthews_correlation"


class RegularizerName(StrEnum):
    """The regularizers of training."""

    NONE = "none"
    GRADDROP = "graddrop"
    LAYER_GRADDROP = "layer-graddrop"
    ANNEAL_GRADDROP = "anneal-graddrop"
    ANNEAL_LAYER_GRADDROP = "anneal-layer-graddrop"
    GRADDROP_EPOCH = "graddrop-epoch"
    GRADDROP_EPOCH_TOGGLE = "graddrop-epoch-toggle"
    GRADFREEZE_TOPDOWN = "gradfreeze-topdown"
    GRADFREEZE_BOTTOMUP = "gradfreeze-bottomup"
    MIXOUT = "mixout"


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


def example(command_line: str) -> str:
    """The last line of a command's help."""
    return f"Example:  [cyan]{command_line}[/cyan]"
