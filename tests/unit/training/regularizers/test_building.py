"""Regularizers in recipes and in the loop."""

import pytest
import torch
from pydantic import JsonValue

from doubles.backbones import tiny_backbone
from doubles.examples import toy_data
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, Full, HeadOnly, Lora, Method, TopK
from nunatak_model import Backbone, tensors_to_bytes
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.fitting import TrainedTask, fit_task
from nunatak_training.recipes import Recipe, RegularizerName, default_recipe
from nunatak_training.regularizers import build_regularizer, random_source
from nunatak_training.report import Report

NAMES = list(RegularizerName)
QUICK: dict[str, JsonValue] = {"epochs": 2, "min_steps": 0, "batch_size": 16, "max_length": 32}


@pytest.fixture(name="backbone", scope="module")
def make_backbone() -> Backbone:
    return tiny_backbone(num_layers=2)


def recipe_of(name: RegularizerName, method: Method, **changes: JsonValue) -> Recipe:
    return default_recipe(method, changes={**QUICK, "regularizer": {"name": name}, **changes})


def trained(recipe: Recipe, backbone: Backbone) -> TrainedTask:
    return fit_task(toy_data(num_train=32), recipe, backbone, report=Report())


@pytest.mark.parametrize("name", NAMES)
def test_every_regularizer_is_recorded_and_changes_the_digest(name: RegularizerName) -> None:
    recipe = recipe_of(name, TopK(num_layers=2))

    settings = recipe.settings()["regularizer"]
    assert isinstance(settings, dict)
    assert settings["name"] == name
    assert Recipe.model_validate(recipe.settings()) == recipe
    same = name is RegularizerName.NONE
    assert (recipe.digest == recipe_of(RegularizerName.NONE, TopK(num_layers=2)).digest) is same


@pytest.mark.each
@pytest.mark.parametrize(
    "method",
    [
        TopK(num_layers=2),
        Bottleneck(size=4),
        Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE),
        Full(),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_every_regularizer_trains_every_method_with_layers(
    name: RegularizerName, method: Method, backbone: Backbone
) -> None:
    result = trained(recipe_of(name, method, epochs=2), backbone)

    assert all(torch.isfinite(tensor).all() for tensor in result.parameters.values())


def test_every_regularizer_gives_other_weights(backbone: Backbone) -> None:
    def weights(name: RegularizerName) -> bytes:
        recipe = recipe_of(name, TopK(num_layers=2), epochs=3, dropout=0.0)
        return tensors_to_bytes(trained(recipe, backbone).parameters)

    assert len({weights(name) for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize("name", [RegularizerName.GRADDROP, RegularizerName.MIXOUT])
def test_same_seed_gives_the_same_bytes(name: RegularizerName, backbone: Backbone) -> None:
    first, second = (trained(recipe_of(name, TopK(num_layers=1)), backbone) for _ in range(2))

    assert tensors_to_bytes(first.parameters) == tensors_to_bytes(second.parameters)


def test_regularizer_does_not_disturb_the_random_state_of_the_loop() -> None:
    parameters = {"layers.0.qkv.weight": torch.ones(2, 2, requires_grad=True)}
    before = torch.get_rng_state()

    for name in NAMES:
        settings = recipe_of(name, TopK(num_layers=2)).regularizer
        built = build_regularizer(
            settings, parameters, num_epochs=3, generator=random_source(parameters, seed=0)
        )
        built.begin_epoch(1)
        built.before_forward()
        parameters["layers.0.qkv.weight"].grad = torch.ones(2, 2)
        built.after_backward()
        built.after_step()

    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "name",
    [it for it in NAMES if it is not RegularizerName.NONE and not it.startswith("gradfreeze")],
)
def test_gradient_dropout_and_mixout_take_the_place_of_dropout(name: RegularizerName) -> None:
    assert recipe_of(name, TopK(num_layers=2)).dropout == 0.0
    with pytest.raises(InvalidRecipeError, match="replaces dropout"):
        recipe_of(name, TopK(num_layers=2), dropout=0.1)


@pytest.mark.parametrize("name", [RegularizerName.NONE, RegularizerName.GRADFREEZE_TOPDOWN])
def test_others_keep_dropout(name: RegularizerName) -> None:
    assert (
        recipe_of(name, TopK(num_layers=2)).dropout
        == default_recipe(TopK(num_layers=2)).dropout
        > 0
    )


@pytest.mark.parametrize("name", NAMES[1:])
def test_head_has_no_layers_to_regularize(name: RegularizerName, backbone: Backbone) -> None:
    with pytest.raises(InvalidRecipeError, match="method head tunes none"):
        trained(recipe_of(name, HeadOnly()), backbone)


@pytest.mark.parametrize(
    "name", [it for it in NAMES if it.startswith(("anneal", "graddrop-epoch", "gradfreeze"))]
)
def test_one_epoch_is_too_few_for_what_goes_by_epochs(
    name: RegularizerName, backbone: Backbone
) -> None:
    with pytest.raises(InvalidRecipeError, match="needs at least 2, got 1"):
        trained(recipe_of(name, TopK(num_layers=2), epochs=1), backbone)


def test_one_layer_cannot_be_unfrozen_gradually(backbone: Backbone) -> None:
    with pytest.raises(InvalidRecipeError, match="at least 2 tuned layers"):
        trained(recipe_of(RegularizerName.GRADFREEZE_TOPDOWN, TopK(num_layers=1)), backbone)


@pytest.mark.parametrize(
    ("regularizer", "problem"),
    [
        pytest.param({"name": "graddrop", "rate": 1.0}, "rate", id="everything-dropped"),
        pytest.param({"name": "graddrop-epoch", "rate": 0.2}, "rate", id="no-rate-by-epoch"),
        pytest.param({"name": "nograd"}, "regularizer", id="unknown"),
    ],
)
def test_settings_that_do_not_fit_are_named(
    regularizer: dict[str, JsonValue], problem: str
) -> None:
    with pytest.raises(InvalidRecipeError, match=problem):
        default_recipe(TopK(num_layers=2), changes={"regularizer": regularizer})


def test_mixout_of_vectors_alone_is_refused() -> None:
    vectors = {"layers.0.scale": torch.ones(4), "head.output.weight": torch.ones(2, 4)}
    settings = recipe_of(RegularizerName.MIXOUT, TopK(num_layers=1)).regularizer

    with pytest.raises(InvalidRecipeError, match="mixes matrices, and the method tunes none"):
        build_regularizer(settings, vectors, num_epochs=2, generator=random_source(vectors, seed=0))
