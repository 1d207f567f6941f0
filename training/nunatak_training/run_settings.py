"""Run settings by name: the method of a run, and its changes to the recipe's defaults.

Every name comes from a field: of a method's class, of `LayerSettings`, or of `Recipe`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Annotated, Literal

from pydantic import Field, JsonValue, field_validator

from nunatak_contract.enums import MethodKind
from nunatak_contract.methods import Method
from nunatak_training import recipes
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.settings import Setting, Settings, check_name, flattened, settings_of

TARGET = 0.95
"""The share of full fine-tuning's score that is good enough for Lee et al. 2019."""


class LayerSettings(Settings):
    """The settings of the number of own layers of `topk`."""

    layers: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        default=recipes.TOP_LAYERS,
        description="number of own top layers; auto: the fewest that keep `target`",
    )
    frozen: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="number of lowest layers that stay shared, in place of `layers`"
    )
    target: Annotated[float, Field(gt=0, le=1)] = Field(
        default=TARGET, description="with layers auto: share of full fine-tuning's dev score"
    )

    @field_validator("layers", mode="before")
    @classmethod
    def _is_a_number_or_auto(cls, value: JsonValue) -> JsonValue:
        text = str(value)
        if value is not None and text != "auto" and not (text.isdecimal() and int(text) >= 1):
            raise ValueError(f"must be a number from 1 up or auto, got {value!r}")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """A method, and changes to the recipe's defaults for that method."""

    method: Method
    """With `frozen`, its number of layers follows from the backbone."""
    frozen: int | None = None
    layer_target: float | None = None
    """If given, a search finds the fewest layers with this share of full fine-tuning's score."""
    changes: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])


def read_settings(named: Mapping[str, JsonValue]) -> RunSettings:
    """Read `method`, settings of the method and settings of the recipe, by name.

    Of options, task files and sweep files alike: the type of a setting decides how a text is read.
    """
    flat = flattened(named)
    kind = str(flat.pop("method", MethodKind.TOPK.value))
    if kind not in recipes.METHODS:
        raise InvalidRecipeError(
            f"method must be one of {', '.join(recipes.METHODS)}, got {kind!r}"
        )
    own = method_settings(kind)
    for name in flat:
        owners = [each for each in recipes.METHODS if name in method_settings(each)]
        if owners and kind not in owners:
            raise InvalidRecipeError(
                f"{name} belongs to method {' and '.join(owners)}, not to {kind}"
            )
        # A group of settings, such as `tapt`, may be null.
        is_of_recipe = any(f"{it}.".startswith(f"{name}.") for it in recipes.recipe_settings())
        if not owners and not is_of_recipe:
            check_name(name, [it.name for it in all_settings()])
    of_method = {name: own[name].read(flat.pop(name)) for name in [*flat] if name in own}
    frozen: int | None = None
    target: float | None = None
    if kind == MethodKind.TOPK.value:
        chosen = _layers(of_method)
        frozen, target = chosen.frozen, chosen.target if chosen.layers == "auto" else None
        of_method = {"num_layers": chosen.layers} if isinstance(chosen.layers, int) else {}
    default = recipes.METHODS[kind]
    settings = {**default.model_dump(mode="json"), **of_method}
    method = recipes.validated(type(default), settings)
    recipes.default_recipe(method, changes=flat)
    return RunSettings(method=method, frozen=frozen, layer_target=target, changes=flat)


@cache
def method_settings(kind: str) -> Mapping[str, Setting]:
    if kind == MethodKind.TOPK.value:
        return settings_of(LayerSettings)
    record = recipes.METHODS[kind]
    found = settings_of(type(record), record.model_dump(mode="json"))
    return {name: it for name, it in found.items() if name != "kind"}


def all_settings() -> tuple[Setting, ...]:
    """Settings of methods come first."""
    method = Setting(
        name="method",
        values="|".join(recipes.METHODS),
        default=MethodKind.TOPK.value,
        description="the method: the task's own parameters",
    )
    owners = dict[str, list[str]]()
    for kind in recipes.METHODS:
        for name in method_settings(kind):
            owners.setdefault(name, []).append(kind)
    defaults_in_words = {
        **dict.fromkeys(recipes.DEFAULTS_BY_METHOD, "by method"),
        "patience": str(recipes.PATIENCE),
        "regularizer.rate": "by name",
    }
    of_methods = (
        replace(it, description=f"{', '.join(kinds)}: {it.description}".rstrip(": "))
        for name, kinds in owners.items()
        for it in [method_settings(kinds[0])[name]]
    )
    of_recipe = (
        replace(it, default=defaults_in_words.get(it.name, it.default))
        for it in recipes.recipe_settings().values()
    )
    return (method, *of_methods, *of_recipe)


def _layers(named: Mapping[str, JsonValue]) -> LayerSettings:
    chosen = recipes.validated(LayerSettings, named)
    if "layers" in named and chosen.frozen is not None:
        raise InvalidRecipeError("layers and frozen set the same number; give one of them")
    if "target" in named and chosen.layers != "auto":
        raise InvalidRecipeError("target belongs to layers auto")
    return chosen
