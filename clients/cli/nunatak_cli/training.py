"""From the options of `train` to a published version."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from nunatak_cli.options import KindName, MethodName
from nunatak_model import (
    DEFAULT_BACKBONE,
    BackboneConfig,
    Bottleneck,
    Full,
    HeadOnly,
    InvalidMethodError,
    Lora,
    LoraTarget,
    Method,
    TopK,
    load_backbone,
)
from nunatak_registry import Registry, check_alias_name
from nunatak_registry.names import check_task_name
from nunatak_training import (
    DiskTrunkStore,
    ProgressBar,
    TaskKind,
    TrainOutcome,
    TrainSettings,
    default_cache_folder,
    default_recipe,
    train,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """What was asked for; `method_settings` and `changes` hold only what was given."""

    task: str
    data: str
    kind: KindName | None
    dev: Path | None
    note: str
    backbone: str | None
    method: MethodName
    method_settings: Mapping[str, float | str]
    changes: Mapping[str, JsonValue]
    cache: bool = True
    """Whether trunk states are kept on disk."""
    layer_target: float | None = None
    """Absent: the method says how many layers; else see `TrainSettings`."""
    resume: bool = True
    """Whether a killed run goes on, and this one could."""


def train_and_promote(
    request: TrainRequest, registry: Registry, *, alias: str | None
) -> TrainOutcome:
    """Train, publish, and point `alias` at the version, if there is one."""
    if alias is not None:
        check_alias_name(alias)  # a slip must not show only when all the work is done
    check_task_name(request.task)
    backbone = load_backbone(request.backbone or DEFAULT_BACKBONE)
    recipe = default_recipe(
        method_of(request.method, request.method_settings, backbone.config),
        backbone=backbone.name,
        changes=request.changes,
    )
    settings = TrainSettings(
        task=request.task,
        data=request.data,
        recipe=recipe,
        kind=None if request.kind is None else TaskKind(request.kind.value),
        dev=request.dev,
        note=request.note,
        layer_target=request.layer_target,
        recipe_changes=request.changes,
    )
    outcome = train(
        settings,
        registry=registry,
        backbone=backbone,
        report=ProgressBar(request.task),
        trunks=DiskTrunkStore() if request.cache else None,
        checkpoints=default_cache_folder() if request.resume else None,
    )
    if alias is not None:
        registry.promote(request.task, alias, outcome.manifest.version)
    return outcome


def method_of(name: MethodName, settings: Mapping[str, Any], config: BackboneConfig) -> Method:
    """Build the method from those of its settings that were given.

    Raises:
        InvalidMethodError: there are not so many layers to freeze, or no such target.
    """
    chosen = dict(settings)
    if "frozen" in chosen:
        return above(chosen["frozen"], config)
    if "targets" in chosen:
        chosen["targets"] = targets_in(chosen["targets"])
    match name:
        case MethodName.TOPK:
            return TopK(num_layers=chosen["layers"]) if "layers" in chosen else TopK()
        case MethodName.HEAD:
            return HeadOnly()
        case MethodName.BOTTLENECK:
            return Bottleneck(**chosen)
        case MethodName.LORA:
            return Lora(**chosen)
        case MethodName.FULL:
            return Full()


def above(num_frozen: int, config: BackboneConfig) -> TopK | HeadOnly:
    """The method that tunes all layers above the lowest `num_frozen`; a head if none is left.

    Raises:
        InvalidMethodError: the backbone has fewer layers.
    """
    if num_frozen > config.num_layers:
        raise InvalidMethodError(
            f"frozen layers must be in [0, {config.num_layers}], got {num_frozen} "
            f"(the backbone has {config.num_layers} layers)"
        )
    if num_frozen == config.num_layers:
        return HeadOnly()
    return TopK(num_layers=config.num_layers - num_frozen)


def targets_in(text: str) -> tuple[LoraTarget, ...]:
    """Read names of targets with commas between them.

    Raises:
        InvalidMethodError: a name is none.
    """
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in set(LoraTarget)]
    if unknown:
        raise InvalidMethodError(
            f"lora targets must be of {', '.join(LoraTarget)}, got {unknown[0]!r}"
        )
    return tuple(LoraTarget(name) for name in names)
