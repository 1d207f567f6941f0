"""Recipes: every setting of one training run, with defaults per method.

The settings of regularizers follow the papers. GradDrop, its variants and GradFreeze: O'Neill and
Dutta 2023, "Gradient Sparsification For Masked Fine-Tuning of Transformers", sec. III and IV.
Mixout: Lee, Cho and Kang 2020 (arXiv:1909.11299), as He et al. 2021 (arXiv:2106.03164), sec. 5 and
table 7, use it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from functools import cache
from typing import Annotated, Literal, TypeVar, cast

from pydantic import BaseModel, Field, JsonValue, ValidationError, model_validator

from nunatak_contract import methods
from nunatak_contract.enums import OnLong, Pooling
from nunatak_contract.names import DEFAULT_BACKBONE
from nunatak_contract.record import later, problems_text
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.kinds import Metric
from nunatak_training.settings import Setting, Settings, nested, settings_of

ModelT = TypeVar("ModelT", bound=BaseModel)
Rate = Annotated[float, Field(gt=0, lt=1)]
MIN_STEPS = 300
"""Steps in which every method learns a few hundred examples, roughly."""
TEACHER_TEMPERATURE = 2.0
PATIENCE = 3
"""Number of scored epochs without a better dev score after which training ends."""
LearningRate = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
NOT_SET = frozenset({"backbone", "method", "layer_choice"})
"""Fields of a recipe without a setting, because other options decide them."""


class RegularizerName(StrEnum):
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


RATES: Mapping[str, float] = {
    RegularizerName.GRADDROP: 0.2,
    RegularizerName.LAYER_GRADDROP: 0.2,
    RegularizerName.ANNEAL_GRADDROP: 0.9,
    RegularizerName.ANNEAL_LAYER_GRADDROP: 0.9,
    RegularizerName.MIXOUT: 0.9,
}
"""The usual rate of each regularizer that has one; an annealed one falls to 0 in the last epoch."""


class RegularizerSettings(Settings):
    name: RegularizerName = Field(
        default=RegularizerName.NONE, description="the rule that masks gradients or weights"
    )
    rate: Rate | None = later(None, "masked share; for annealed rates the first one")

    @model_validator(mode="before")
    @classmethod
    def _has_its_usual_rate(cls, given: object) -> object:
        named = cast("Mapping[str, object]", given if isinstance(given, Mapping) else {})
        usual = RATES.get(str(named.get("name")))
        return given if usual is None or named.get("rate") is not None else {**named, "rate": usual}

    @model_validator(mode="after")
    def _masks_a_share_if_it_has_a_rate(self) -> "RegularizerSettings":
        if self.rate is not None and self.name not in RATES:
            raise ValueError(f"regularizer {self.name!s} has no rate, got {self.rate:g}")
        return self


REPLACES_DROPOUT = frozenset(RegularizerName) - {
    RegularizerName.NONE,
    RegularizerName.GRADFREEZE_TOPDOWN,
    RegularizerName.GRADFREEZE_BOTTOMUP,
}
"""These regularizers replace dropout (O'Neill and Dutta 2023, sec. IV; He et al. 2021, sec. 5)."""

GOES_BY_EPOCHS = frozenset(RegularizerName) - {
    RegularizerName.NONE,
    RegularizerName.GRADDROP,
    RegularizerName.LAYER_GRADDROP,
    RegularizerName.MIXOUT,
}
"""These regularizers change from epoch to epoch, and reach full effect in the last epoch."""


class TaptSettings(Settings):
    """Pretraining on the task's own texts, without labels."""

    epochs: Annotated[
        int, Field(ge=1, le=10_000, description="epochs of pretraining as a masked language model")
    ] = 10
    learning_rate: LearningRate | None = Field(
        default=None, description="learning rate of pretraining; null: the learning rate of tuning"
    )
    masked_share: Annotated[
        float, Field(gt=0, lt=1, description="share of hidden tokens of a text in pretraining")
    ] = 0.15


class Optimizer(StrEnum):
    ADAMW = "adamw"
    ADAM = "adam"
    SGD = "sgd"


class Precision(StrEnum):
    """The number format of the matrix products in the steps of training."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Schedule(StrEnum):
    LINEAR = "linear"
    COSINE = "cosine"
    CONSTANT = "constant"


class LayerRun(Settings):
    """One tried number of tuned layers."""

    layers: Annotated[int, Field(ge=0)]
    score: float = Field(description="on the dev examples, in the recipe's metric")


class LayerChoice(Settings):
    """The search for the number of tuned layers."""

    target: Annotated[float, Field(gt=0, le=1, description="share of `full_score` to keep")]
    full_score: float = Field(description="of full fine-tuning")
    runs: tuple[LayerRun, ...] = Field(description="the tries in order")
    layers: int = Field(description="the smallest number of layers that kept the share")


class Recipe(Settings):
    """Every setting of one training run. Recipe and data together determine the result.

    A recipe leaves out fields that came later and have their default, so it keeps its digest.
    """

    backbone: Annotated[str, Field(min_length=1)] = DEFAULT_BACKBONE
    method: methods.Method
    pooling: Pooling | None = Field(
        default=None, description="from token vectors to one vector; null: the backbone's pooling"
    )
    dense: bool | None = Field(
        default=None, description="a dense block in the head; null: the backbone's default"
    )
    max_length: Annotated[
        int, Field(ge=4, le=1_000_000, description="most tokens that are read of a text")
    ] = 128
    epochs: Annotated[int, Field(ge=1, le=10_000, description="passes over the train examples")]
    min_steps: Annotated[
        int,
        Field(
            ge=0, le=1_000_000, description="smallest number of steps; small data gets more epochs"
        ),
    ]
    patience: Annotated[int, Field(ge=1, le=10_000)] | None = later(
        None,
        "scored epochs without a better dev score that end training; null: none, as "
        "with named epochs",
    )
    batch_size: Annotated[int, Field(ge=1, le=65_536, description="examples a step")]
    learning_rate: LearningRate = Field(description="learning rate of own parameters")
    head_learning_rate: LearningRate | None = Field(
        default=None, description="learning rate of the head; null: `learning_rate`"
    )
    optimizer: Optimizer = Field(default=Optimizer.ADAMW, description="the optimizer")
    weight_decay: Share = Field(
        default=0.01, description="decay of matrices; adam and sgd add it to the gradient"
    )
    schedule: Schedule = Field(
        default=Schedule.LINEAR, description="course of the learning rate after the warm-up"
    )
    warmup_share: Share = Field(
        default=0.06, description="share of all steps in which the learning rate rises from 0"
    )
    dropout: Share = Field(
        default=0.1, description="dropout in own layers and head; 0 if a regularizer replaces it"
    )
    regularizer: RegularizerSettings = RegularizerSettings()
    max_grad_norm: Annotated[
        float, Field(gt=0, description="largest norm of a gradient; longer gradients are cut")
    ] = 1.0
    precision: Precision = later(
        Precision.FLOAT32,
        "number format of products in the steps; weights and dev scores stay float32",
    )
    tapt: TaptSettings | None = Field(
        default=None, description="pretraining on the task's texts; null: none"
    )
    teacher_temperature: Annotated[float, Field(ge=1, le=100)] = later(
        TEACHER_TEMPERATURE,
        "of adopt: softens the teacher's and the task's probabilities in the loss",
    )
    metric: Metric | None = Field(
        default=None,
        description="metric that chooses the best epoch; null: the default of the kind of task",
    )
    positive_label: str | None = Field(default=None, description="the label whose F1 `f1` reports")
    default_label: str | None = later(
        None,
        "the label that means that nothing was found; null: of two, the one of 70 % or more of "
        "the examples; none: no label, unless a label has this name",
    )
    joined_share: Annotated[float, Field(ge=0, le=1)] = later(
        0.0,
        "share of the examples that training also reads before or after one of `default_label`, "
        "so that a guard finds what stands beside harmless text",
    )
    calibrate: bool = later(
        default=False,
        description="fit a temperature to the dev examples, so that scores are probabilities",
    )
    thresholds: Literal["f1"] | None = later(
        None,
        "with calibrate, of several labels: the score from which a label applies; "
        "f1: the largest F1 on the dev examples; null: 0.5",
    )
    on_long: OnLong | None = later(
        None, "treatment of longer texts when served; null: the default of the kind of task"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63, description="same seed, same weights")] = 0
    layer_choice: LayerChoice | None = later(
        None, "the search for the number of layers; no effect on the run"
    )

    @model_validator(mode="after")
    def _f1_names_its_label(self) -> "Recipe":
        if (self.metric is Metric.F1) != (self.positive_label is not None):
            raise ValueError("metric 'f1' and positive_label need each other")
        return self

    @model_validator(mode="after")
    def _thresholds_are_of_calibrated_scores(self) -> "Recipe":
        if self.thresholds is not None and not self.calibrate:
            raise ValueError(f"thresholds {self.thresholds!r} needs calibrate true")
        return self

    @model_validator(mode="after")
    def _gradients_are_dropped_in_place_of_activations(self) -> "Recipe":
        if self.regularizer.name in REPLACES_DROPOUT and self.dropout > 0:
            raise ValueError(
                f"regularizer {self.regularizer.name!s} replaces dropout, which must be 0, got "
                f"{self.dropout:g}"
            )
        return self

    @model_validator(mode="after")
    def _pretraining_has_layers_to_move(self) -> "Recipe":
        if self.tapt is not None and isinstance(self.method, methods.HeadOnly):
            raise ValueError("tapt trains layers or adapters, and method 'head' has none")
        return self

    @property
    def digest(self) -> str:
        settings = json.dumps(self.settings(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(settings.encode()).hexdigest()

    def settings(self) -> dict[str, JsonValue]:
        return self.model_dump(mode="json")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Defaults:
    epochs: int
    batch_size: int
    learning_rate: float
    head_learning_rate: float | None = None


DEFAULTS_BY_METHOD = ("min_steps", *(field.name for field in fields(_Defaults)))
"""The settings whose defaults differ between methods, or follow from other settings."""
TOP_LAYERS = 2
"""Layers that `topk` tunes unless a run says otherwise."""
_DEFAULTS: Mapping[methods.Method, _Defaults] = {
    methods.TopK(num_layers=TOP_LAYERS): _Defaults(
        epochs=2, batch_size=32, learning_rate=2e-4, head_learning_rate=1e-3
    ),
    methods.HeadOnly(): _Defaults(epochs=10, batch_size=32, learning_rate=1e-2),
    methods.Bottleneck(size=64): _Defaults(
        epochs=3, batch_size=16, learning_rate=5e-4, head_learning_rate=1e-3
    ),
    methods.Lora(rank=8, alpha=16.0, targets=methods.QUERY_AND_VALUE): _Defaults(
        epochs=4, batch_size=16, learning_rate=1e-3, head_learning_rate=2e-3
    ),
    methods.Ia3(): _Defaults(epochs=6, batch_size=16, learning_rate=1e-2, head_learning_rate=2e-3),
    methods.Full(): _Defaults(epochs=2, batch_size=32, learning_rate=5e-5, head_learning_rate=1e-3),
}
"""The settings of each method, and of its training, unless a run says otherwise.

The numbers were chosen on dev examples of SST-2, TREC, SUBJ, MRPC and CoLA with MiniLM (width 384).
`full` and `ia3` were not tuned: the numbers of `full` follow common practice, and the numbers of
`ia3` are a first guess.
"""
METHODS: Mapping[str, methods.Method] = {method.kind.value: method for method in _DEFAULTS}


def default_recipe(
    method: methods.Method,
    *,
    backbone: str = DEFAULT_BACKBONE,
    changes: Mapping[str, JsonValue] | None = None,
) -> Recipe:
    """The recipe for a method, with `changes` of single settings by name (`tapt.epochs`).

    If `changes` name `epochs`, exactly these run: `min_steps` becomes 0 and `patience` None, unless
    `changes` name them. All epochs also run if a regularizer changes from epoch to epoch. A
    regularizer that replaces dropout sets dropout to 0 unless `changes` name it.
    """
    recipe = Recipe(
        backbone=backbone,
        method=method,
        min_steps=MIN_STEPS,
        patience=PATIENCE,
        **asdict(_DEFAULTS[METHODS[method.kind.value]]),
    )
    changes = nested(changes or {}, recipe_settings())
    changed = changes.get("regularizer")
    if isinstance(changed, dict) and "name" not in changed:
        named = ", ".join(f"regularizer.{name}" for name in changed)
        raise InvalidRecipeError(f"{named} belongs to a regularizer and needs regularizer.name")
    regularizer = changed.get("name") if isinstance(changed, dict) else None
    implied: dict[str, JsonValue] = {}
    if "epochs" in changes:
        implied |= {"min_steps": 0, "patience": None}
    if regularizer in GOES_BY_EPOCHS:
        implied["patience"] = None
    if regularizer in REPLACES_DROPOUT:
        implied["dropout"] = 0.0
    return changed_recipe(recipe, {**implied, **changes})


@cache
def recipe_settings() -> Mapping[str, Setting]:
    found = settings_of(Recipe)
    return {name: it for name, it in found.items() if name.partition(".")[0] not in NOT_SET}


def changed_recipe(recipe: Recipe, changes: Mapping[str, JsonValue]) -> Recipe:
    return validated(Recipe, {**recipe.settings(), **changes})


def validated(kind: type[ModelT], settings: Mapping[str, JsonValue]) -> ModelT:
    try:
        return kind.model_validate(settings)
    except ValidationError as error:
        raise InvalidRecipeError(problems_text(error, "recipe")) from error
