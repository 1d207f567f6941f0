"""From the options of `train` to a published version."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never

from pydantic import JsonValue

from nunatak_cli.options import MethodName
from nunatak_model import DEFAULT_BACKBONE, Bottleneck, Full, HeadOnly, Lora, Method, TopK
from nunatak_registry import Registry, check_alias_name
from nunatak_training import (
    ProgressBar,
    TrainOutcome,
    TrainSettings,
    default_recipe,
    train,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """What was asked for; `method_settings` and `changes` hold only what was given."""

    task: str
    data: str
    dev: Path | None
    note: str
    backbone: str | None
    method: MethodName
    method_settings: Mapping[str, float]
    changes: Mapping[str, JsonValue]


def train_and_promote(
    request: TrainRequest, registry: Registry, *, alias: str | None
) -> TrainOutcome:
    """Train, publish, and point `alias` at the version, if there is one."""
    if alias is not None:
        check_alias_name(alias)  # a slip must not show only when all the work is done
    recipe = default_recipe(
        method_of(request.method, request.method_settings),
        backbone=request.backbone or DEFAULT_BACKBONE,
        changes=request.changes,
    )
    settings = TrainSettings(
        task=request.task,
        data=request.data,
        recipe=recipe,
        dev=request.dev,
        note=request.note,
    )
    outcome = train(settings, registry=registry, report=ProgressBar(request.task))
    if alias is not None:
        registry.promote(request.task, alias, outcome.manifest.version)
    return outcome


def method_of(name: MethodName, settings: Mapping[str, Any]) -> Method:
    """Build the method from those of its settings that were given."""
    match name:
        case MethodName.TOPK:
            return TopK(num_layers=settings["layers"]) if "layers" in settings else TopK()
        case MethodName.HEAD:
            return HeadOnly()
        case MethodName.BOTTLENECK:
            return Bottleneck(**settings)
        case MethodName.LORA:
            return Lora(**settings)
        case MethodName.FULL:
            return Full()
        case _:
            assert_never(name)
