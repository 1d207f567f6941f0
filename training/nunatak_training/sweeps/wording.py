"""What runs and their settings are called where people read them."""

from typing import assert_never

from nunatak_registry.manifest import (
    BottleneckRecord,
    FullRecord,
    HeadOnlyRecord,
    LoraRecord,
    TopKRecord,
)
from nunatak_training.recipes import Recipe
from nunatak_training.sweeps.records import RunDescription


def run_text(run: RunDescription) -> str:
    """One run in a few words."""
    parts = [run.task, method_label(run)]
    regularizer = regularizer_label(run.recipe)
    if regularizer != "none":
        parts.append(regularizer)
    if run.train_cap is not None:
        parts.append(f"{run.train_cap} examples")
    parts += [f"rate {run.recipe.learning_rate:g}", f"seed {run.recipe.seed}"]
    return ", ".join(parts)


def method_label(run: RunDescription) -> str:
    """The method with what tells it from its like; layers are counted as frozen ones."""
    tapt = run.recipe.tapt
    if tapt is None:
        return _plain_label(run)
    return f"{_plain_label(run)} after TAPT of {tapt.epochs} epoch{'s' * (tapt.epochs > 1)}"


def _plain_label(run: RunDescription) -> str:
    method = run.recipe.method
    match method:
        case TopKRecord():
            return f"frozen {run.backbone.num_layers - method.num_layers}"
        case HeadOnlyRecord():
            return f"frozen {run.backbone.num_layers}"
        case BottleneckRecord():
            return f"bottleneck {method.size}{_from(method.first_layer)}"
        case LoraRecord():
            return f"lora {method.rank}{_from(method.first_layer)}"
        case FullRecord():
            return "full"
        case _:
            assert_never(method)


def regularizer_label(recipe: Recipe) -> str:
    """The regularizer with its rate; a rate of dropout that is not the usual one counts as one."""
    settings = recipe.regularizer.model_dump(mode="json")
    rate = settings.get("rate")
    if rate is not None:
        return f"{settings['name']} {rate:g}"
    usual = Recipe.model_fields["dropout"].default
    if settings["name"] == "none" and recipe.dropout != usual:
        return f"dropout {recipe.dropout:g}"
    return str(settings["name"])


def num_frozen(run: RunDescription) -> int | None:
    """How many of the lowest layers are frozen; None where the method is not about that."""
    match run.recipe.method:
        case TopKRecord(num_layers=own):
            return run.backbone.num_layers - own
        case HeadOnlyRecord():
            return run.backbone.num_layers
        case _:
            return None


def _from(first_layer: int) -> str:
    return f" from layer {first_layer}" if first_layer else ""
