"""Recipes: every setting of one training run, with defaults per method."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from nunatak_artifact import method_of, method_record
from nunatak_model import (
    DEFAULT_BACKBONE,
    Bottleneck,
    Full,
    HeadOnly,
    Lora,
    Method,
    Pooling,
    TopK,
)
from nunatak_registry.manifest import MethodRecord, OnLong
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.metrics import Metric
from nunatak_training.pretraining.settings import TaptSettings
from nunatak_training.regularizers import RegularizerSettings, UnregularizedSettings
from nunatak_training.regularizers.settings import REPLACES_DROPOUT

MIN_STEPS = 300
"""A few hundred examples are learnt in about so many steps, whatever the method."""

LearningRate = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Optimizer(StrEnum):
    """How gradients become steps."""

    ADAMW = "adamw"
    ADAM = "adam"
    SGD = "sgd"


class Schedule(StrEnum):
    """What becomes of the learning rate after its warm-up."""

    LINEAR = "linear"
    COSINE = "cosine"
    CONSTANT = "constant"


class LayerRun(BaseModel):
    """One number of tuned layers that was tried."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    layers: Annotated[int, Field(ge=0)]
    score: float = Field(description="on the dev examples, in the recipe's metric")


class LayerChoice(BaseModel):
    """How the number of tuned layers was chosen."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    target: Annotated[float, Field(gt=0, le=1, description="share of `full_score` to keep")]
    full_score: float = Field(description="of full fine-tuning")
    runs: tuple[LayerRun, ...] = Field(description="in the order they were made")
    layers: int = Field(description="the fewest that kept it")


class Recipe(BaseModel):
    """Every setting of one training run; together with the data it fixes the result."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    backbone: Annotated[str, Field(min_length=1)] = DEFAULT_BACKBONE
    method: MethodRecord
    pooling: Pooling | None = Field(default=None, description="null: as the backbone was trained")
    dense: bool | None = Field(default=None, description="null: as is usual for the backbone")
    max_length: Annotated[int, Field(ge=4, le=1_000_000, description="tokens")] = 128
    epochs: Annotated[int, Field(ge=1, le=10_000)]
    min_steps: Annotated[
        int, Field(ge=0, le=1_000_000, description="small data gets more epochs to reach it")
    ]
    batch_size: Annotated[int, Field(ge=1, le=65_536)]
    learning_rate: LearningRate = Field(description="of the branch, or of a head alone")
    head_learning_rate: LearningRate | None = Field(
        default=None, description="null: `learning_rate`"
    )
    optimizer: Optimizer = Optimizer.ADAMW
    weight_decay: Share = Field(default=0.01, description="adam and sgd add it to the gradient")
    schedule: Schedule = Schedule.LINEAR
    warmup_share: Share = Field(default=0.06, description="of all steps; a linear rise from 0")
    dropout: Share = Field(default=0.1, description="0 where the regularizer replaces it")
    regularizer: RegularizerSettings = UnregularizedSettings()
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    tapt: TaptSettings | None = Field(default=None, description="null: tuning begins at once")
    metric: Metric | None = Field(default=None, description="null: as is usual for the task")
    positive_label: str | None = Field(default=None, description="the label whose F1 `f1` reports")
    default_label: str | None = Field(
        default=None,
        description="the label that means that nothing was found; null: of two, the more frequent",
        # Younger than the digests of recipes, as `on_long`: without it they are what they were.
        exclude_if=lambda label: label is None,
    )
    on_long: OnLong | None = Field(
        default=None,
        description="what becomes of longer texts when served; null: as is usual for the task",
        exclude_if=lambda choice: choice is None,
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    layer_choice: LayerChoice | None = Field(
        default=None,
        description="how the number of layers was found; changes nothing in the run",
        # A recipe whose layers were named has the digest it has always had.
        exclude_if=lambda choice: choice is None,
    )

    @model_validator(mode="after")
    def _f1_names_its_label(self) -> "Recipe":
        if (self.metric is Metric.F1) != (self.positive_label is not None):
            raise ValueError("metric 'f1' and positive_label need each other")
        return self

    @model_validator(mode="after")
    def _gradients_are_dropped_in_place_of_activations(self) -> "Recipe":
        if self.regularizer.name in REPLACES_DROPOUT and self.dropout > 0:
            raise ValueError(
                f"regularizer {self.regularizer.name!s} takes the place of dropout, which must "
                f"then be 0, got {self.dropout:g}"
            )
        return self

    @model_validator(mode="after")
    def _pretraining_has_layers_to_move(self) -> "Recipe":
        if self.tapt is not None and isinstance(method_of(self.method), HeadOnly):
            raise ValueError("tapt moves layers or adapters, and method 'head' has none")
        return self

    @property
    def digest(self) -> str:
        """SHA-256 over all settings."""
        settings = json.dumps(self.settings(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(settings.encode()).hexdigest()

    def settings(self) -> dict[str, JsonValue]:
        """Return all settings as JSON values."""
        return self.model_dump(mode="json")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Defaults:
    epochs: int
    batch_size: int
    learning_rate: float
    head_learning_rate: float | None


def default_recipe(
    method: Method,
    *,
    backbone: str = DEFAULT_BACKBONE,
    changes: Mapping[str, JsonValue] | None = None,
) -> Recipe:
    """Return the recipe for a method, with `changes` of single settings by name.

    Who names `epochs` gets that many: `min_steps` is then 0 unless it is named too. Where the
    regularizer takes the place of dropout, dropout is 0 unless it is named.

    Raises:
        InvalidRecipeError: a change names no setting, or its value or one of the method's does not
            fit.
    """
    defaults = _defaults_of(method)
    recipe = Recipe(
        backbone=backbone,
        method=_record_of(method),
        epochs=defaults.epochs,
        min_steps=MIN_STEPS,
        batch_size=defaults.batch_size,
        learning_rate=defaults.learning_rate,
        head_learning_rate=defaults.head_learning_rate,
    )
    changes = changes or {}
    implied: dict[str, JsonValue] = {}
    if "epochs" in changes:
        implied["min_steps"] = 0
    if _replaces_dropout(changes.get("regularizer")):
        implied["dropout"] = 0.0
    return changed_recipe(recipe, {**implied, **changes})


def changed_recipe(recipe: Recipe, changes: Mapping[str, JsonValue]) -> Recipe:
    """Return a copy with single settings changed by name.

    Raises:
        InvalidRecipeError: a change names no setting, or its value does not fit.
    """
    try:
        return Recipe.model_validate({**recipe.settings(), **changes})
    except ValidationError as error:
        raise InvalidRecipeError(_problems(error)) from error


def _record_of(method: Method) -> MethodRecord:
    try:
        return method_record(method)
    except ValidationError as error:
        raise InvalidRecipeError(_problems(error, within="method")) from error


def _problems(error: ValidationError, *, within: str | None = None) -> str:
    root = () if within is None else (within,)
    return "; ".join(
        f"{'.'.join(map(str, (*root, *problem['loc']))) or 'recipe'}: {problem['msg']}"
        for problem in error.errors(include_url=False)
    )


def _replaces_dropout(regularizer: JsonValue) -> bool:
    return isinstance(regularizer, dict) and regularizer.get("name") in REPLACES_DROPOUT


def _defaults_of(method: Method) -> _Defaults:
    # Chosen on dev examples of SST-2, TREC, SUBJ, MRPC and CoLA with MiniLM (width 384); `full`
    # alone was not tuned and follows common practice.
    match method:
        case HeadOnly():
            return _Defaults(epochs=10, batch_size=32, learning_rate=1e-2, head_learning_rate=None)
        case TopK():
            return _Defaults(epochs=2, batch_size=32, learning_rate=2e-4, head_learning_rate=1e-3)
        case Bottleneck():
            return _Defaults(epochs=3, batch_size=16, learning_rate=5e-4, head_learning_rate=1e-3)
        case Lora():
            return _Defaults(epochs=4, batch_size=16, learning_rate=1e-3, head_learning_rate=2e-3)
        case Full():
            return _Defaults(epochs=2, batch_size=32, learning_rate=5e-5, head_learning_rate=1e-3)
