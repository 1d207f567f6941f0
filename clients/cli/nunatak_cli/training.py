"""From the options of `train` to a published version."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from nunatak_cli.options import KindName, MethodName
from nunatak_model import (
    DEFAULT_BACKBONE,
    Backbone,
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
    Recipe,
    TaskKind,
    TrainOutcome,
    TrainSettings,
    TrunkStore,
    default_cache_folder,
    default_recipe,
    train,
)
from nunatak_training.multitask import (
    MultitaskOutcome,
    MultitaskSettings,
    SharedTask,
    train_backbone,
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
    request: TrainRequest,
    registry: Registry,
    *,
    alias: str | None,
    backbone: Backbone | None = None,
    trunks: TrunkStore | None = None,
) -> TrainOutcome:
    """Train, publish, and point `alias` at the version, if there is one.

    A loaded backbone and a store of trunk states may be shared by several requests.
    """
    check_names(request, alias)
    if backbone is None:
        backbone = load_backbone(request.backbone or DEFAULT_BACKBONE)
    recipe = recipe_of(request, backbone)
    if trunks is None and request.cache:
        trunks = DiskTrunkStore()
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
        trunks=trunks,
        checkpoints=default_cache_folder() if request.resume else None,
    )
    if alias is not None:
        registry.promote(request.task, alias, outcome.manifest.version)
    return outcome


def train_shared_encoder(
    sources: Mapping[str, str],
    kinds: Mapping[str, KindName],
    *,
    output: Path,
    backbone: str | None,
    changes: Mapping[str, JsonValue],
    resumes: bool,
) -> MultitaskOutcome:
    """Train one encoder on the tasks of `sources`, by name, and write it to `output`.

    With `resumes` a killed run goes on, and this one could.
    """
    base = load_backbone(backbone or DEFAULT_BACKBONE)
    tasks = {
        name: SharedTask(data=data, kind=TaskKind(kinds[name].value) if name in kinds else None)
        for name, data in sources.items()
    }
    recipe = default_recipe(Full(), backbone=base.name, changes=changes)
    settings = MultitaskSettings(tasks=tasks, recipe=recipe, output=output)
    return train_backbone(
        settings,
        base,
        report=ProgressBar(", ".join(sources)),
        checkpoints=default_cache_folder() if resumes else None,
    )


def check_request(request: TrainRequest, backbone: Backbone, *, alias: str | None) -> None:
    """Return if a request can be begun.

    Raises:
        RegistryError: the task or the alias has no such name.
        InvalidRecipeError, ModelError: its settings do not fit each other or the backbone.
    """
    check_names(request, alias)
    method_of(request.method, request.method_settings, backbone.config).check(backbone.config)
    recipe_of(request, backbone)


def check_names(request: TrainRequest, alias: str | None) -> None:
    """Return if names are well formed: a slip must not show only when all the work is done."""
    if alias is not None:
        check_alias_name(alias)
    check_task_name(request.task)


def recipe_of(request: TrainRequest, backbone: Backbone) -> Recipe:
    """The recipe that a request asks for."""
    method = method_of(request.method, request.method_settings, backbone.config)
    return default_recipe(method, backbone=backbone.name, changes=request.changes)


def split_depth(request: TrainRequest, backbone: Backbone) -> int:
    """The depth from which a request needs trunk states; 0 where it needs none, or several."""
    if request.layer_target is not None:
        return 0
    method = method_of(request.method, request.method_settings, backbone.config)
    return method.split_depth(backbone.config) or 0


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
