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
    PEARSON = "pearson"
    SPEARMAN = "spearman"
    ENTITY_F1 = "entity_f1"
    SPAN_F1 = "span_f1"
    EXACT_MATCH = "exact_match"
    NDCG = "ndcg"
    MRR = "mrr"


class OnLongName(StrEnum):
    """What becomes of texts that are longer than a task reads at once."""

    WINDOWS = "windows"
    REFUSE = "refuse"
    CUT = "cut"


class KindName(StrEnum):
    """The kinds of task that can be trained."""

    SINGLE_LABEL = "single-label"
    MULTI_LABEL = "multi-label"
    REGRESSION = "regression"
    TOKEN_CLASSIFICATION = "token-classification"  # noqa: S105 - a kind, no secret
    QUESTION_ANSWERING = "question-answering"
    RANKING = "ranking"


class OptimizerName(StrEnum):
    """The optimizers of training."""

    ADAMW = "adamw"
    ADAM = "adam"
    SGD = "sgd"


class ScheduleName(StrEnum):
    """What becomes of the learning rate after its warm-up."""

    LINEAR = "linear"
    COSINE = "cosine"
    CONSTANT = "constant"


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


class ImportFormat(StrEnum):
    """Whose folders `task import` reads."""

    AUTO = "auto"
    TRANSFORMERS = "transformers"
    PEFT = "peft"
    ADAPTERHUB = "adapterhub"


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
