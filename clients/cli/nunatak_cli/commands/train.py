"""`nunatak train`: from a file of examples to a published version."""

# ruff: noqa: PLC0415 - torch is imported when training starts, not for --help

from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue

from nunatak_cli.failures import needs_extra
from nunatak_cli.method_options import (
    layer_settings,
    method_settings,
    regularizer_settings,
    tapt_settings,
)
from nunatak_cli.options import (
    BackboneOption,
    CacheOption,
    JsonOption,
    KindName,
    MethodName,
    MetricName,
    OnLongName,
    OptimizerName,
    RegistryOption,
    RegularizerName,
    ResumeOption,
    ScheduleName,
)
from nunatak_cli.output import console, print_json
from nunatak_cli.registries import created_registry

RECIPE = "Recipe (absent: tuned defaults of the method)"
METHOD = "Method"


def train(  # noqa: PLR0913 - one parameter per option is how typer works
    *,
    task: Annotated[str, typer.Option(metavar="NAME", help="Name of the task.")],
    data: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="Examples: JSONL, CSV, TSV or Parquet; a folder with train.* and dev.*; or the "
            "name of a data set on the hub. Columns: see --kind.",
        ),
    ],
    dev: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Examples to choose the best epoch by. Absent: a tenth of the data.",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[
        KindName | None,
        typer.Option(
            help="Absent: by the columns of the first row. text and label (a number with a "
            "decimal point: regression); text and labels; tokens and tags; question, context and "
            "answers; query, document and label.",
            show_default=False,
        ),
    ] = None,
    registry: RegistryOption = None,
    promote: Annotated[
        str | None,
        typer.Option(
            metavar="ALIAS", help="Then point this alias at the version.", show_default=False
        ),
    ] = None,
    note: Annotated[str, typer.Option(metavar="TEXT", help="A remark to keep with it.")] = "",
    as_json: JsonOption = False,
    cache: CacheOption = True,
    resume: ResumeOption = True,
    method: Annotated[
        MethodName, typer.Option(help="What is the task's own.", rich_help_panel=METHOD)
    ] = MethodName.TOPK,
    backbone: BackboneOption = None,
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="N|auto",
            help="topk: own top layers (2); auto: the fewest that keep --target.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="With --layers auto: of full fine-tuning's dev score (0.95).",
            rich_help_panel=METHOD,
        ),
    ] = None,
    frozen: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="topk: lowest layers that stay shared, in place of --layers.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="bottleneck: width of the adapters (64).",
            rich_help_panel=METHOD,
        ),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="lora: rank of the updates (8).", rich_help_panel=METHOD
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="lora: scale of the updates, times rank (16).", rich_help_panel=METHOD
        ),
    ] = None,
    targets: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="lora: of query, key, value, attention_output, feedforward_in, feedforward_out "
            "(query,value).",
            rich_help_panel=METHOD,
        ),
    ] = None,
    first_layer: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="bottleneck, lora: layers below stay shared (0).",
            rich_help_panel=METHOD,
        ),
    ] = None,
    metric: Annotated[
        MetricName | None, typer.Option(help="Chooses the best epoch.", rich_help_panel=RECIPE)
    ] = None,
    positive_label: Annotated[
        str | None,
        typer.Option(metavar="LABEL", help="The label f1 is about.", rich_help_panel=RECIPE),
    ] = None,
    default_label: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL",
            help="The label that means that nothing was found (of two, the more frequent): a long "
            "text gets the answer of the window in which most else is found.",
            rich_help_panel=RECIPE,
        ),
    ] = None,
    on_long: Annotated[
        OnLongName | None,
        typer.Option(
            help="What a server does with texts of more tokens (windows; ranking: cut).",
            rich_help_panel=RECIPE,
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Passes over the data. Absent: more for small data.",
            rich_help_panel=RECIPE,
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Of the layers, or of a head alone.", rich_help_panel=RECIPE
        ),
    ] = None,
    head_learning_rate: Annotated[
        float | None,
        typer.Option(metavar="X", help="Of a head on layers.", rich_help_panel=RECIPE),
    ] = None,
    optimizer: Annotated[
        OptimizerName | None, typer.Option(help="adamw.", rich_help_panel=RECIPE)
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(metavar="X", help="Of matrices (0.01).", rich_help_panel=RECIPE)
    ] = None,
    schedule: Annotated[
        ScheduleName | None,
        typer.Option(help="Of the learning rate: linear.", rich_help_panel=RECIPE),
    ] = None,
    warmup_share: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Of all steps, with a rising rate (0.06).", rich_help_panel=RECIPE
        ),
    ] = None,
    dropout: Annotated[
        float | None,
        typer.Option(metavar="X", help="In own layers and head (0.1).", rich_help_panel=RECIPE),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Examples per step.", rich_help_panel=RECIPE),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(min=4, metavar="N", help="Tokens read of a text.", rich_help_panel=RECIPE),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Same seed, same weights.", rich_help_panel=RECIPE),
    ] = None,
    tapt_epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="First go through the texts N times as a masked language model.",
            rich_help_panel=RECIPE,
        ),
    ] = None,
    tapt_learning_rate: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="The rate meanwhile (that of tuning).", rich_help_panel=RECIPE
        ),
    ] = None,
    regularizer: Annotated[
        RegularizerName | None,
        typer.Option(help="Masks gradients or weights while training.", rich_help_panel=RECIPE),
    ] = None,
    regularizer_rate: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="graddrop, layer-graddrop (0.2), anneal-* (0.9, at first), mixout (0.9).",
            rich_help_panel=RECIPE,
        ),
    ] = None,
) -> None:
    """Train a task on your examples and publish it as a new version."""
    num_layers, layer_target = layer_settings(layers, target, method, frozen)
    chosen = method_settings(
        method,
        {
            "layers": num_layers,
            "frozen": frozen,
            "size": size,
            "rank": rank,
            "alpha": alpha,
            "targets": targets,
            "first_layer": first_layer,
        },
    )
    changes: dict[str, JsonValue] = {
        "metric": metric,
        "positive_label": positive_label,
        "default_label": default_label,
        "on_long": on_long,
        "epochs": epochs,
        "learning_rate": learning_rate,
        "head_learning_rate": head_learning_rate,
        "optimizer": optimizer,
        "weight_decay": weight_decay,
        "schedule": schedule,
        "warmup_share": warmup_share,
        "dropout": dropout,
        "batch_size": batch_size,
        "max_length": max_length,
        "seed": seed,
        "tapt": tapt_settings(tapt_epochs, tapt_learning_rate),
        "regularizer": regularizer_settings(regularizer, regularizer_rate),
    }
    with needs_extra("training"):
        from nunatak_cli.training import TrainRequest, train_and_promote
        from nunatak_cli.views.training import outcome_json, outcome_table
    request = TrainRequest(
        task=task,
        data=data,
        kind=kind,
        dev=dev,
        note=note,
        backbone=backbone,
        method=method,
        method_settings=chosen,
        changes={name: value for name, value in changes.items() if value is not None},
        layer_target=layer_target,
        cache=cache,
        resume=resume,
    )
    with created_registry(registry) as opened:
        outcome = train_and_promote(request, opened, alias=promote)
    if as_json:
        print_json(outcome_json(outcome, alias=promote))
    else:
        console().print(outcome_table(outcome))
        console().print(f"published {outcome.manifest.reference}")
        if promote is not None:
            console().print(f"{task}@{promote} -> version {outcome.manifest.version}")
