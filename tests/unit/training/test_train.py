from collections.abc import Callable
from dataclasses import replace

import pytest
from pydantic import JsonValue

from doubles.backbones import tiny_backbone
from doubles.examples import toy_data
from doubles.refusals import raises
from nunatak_contract.methods import HeadOnly, TopK
from nunatak_training.fitting import TrainedTask, fit_task
from nunatak_training.recipes import Recipe, default_recipe
from nunatak_training.report import Report
from nunatak_training.run_settings import read_settings
from nunatak_training.train import choose_layers

NUM_LAYERS = 6
BACKBONE = tiny_backbone(num_layers=NUM_LAYERS)
QUICK: dict[str, JsonValue] = {"epochs": 1, "max_length": 16}
TEMPLATE = fit_task(
    toy_data(num_train=8, num_dev=4),
    default_recipe(HeadOnly(), changes=QUICK),
    BACKBONE,
    report=Report(),
)


def layers_of(recipe: Recipe) -> int | None:
    match recipe.method:
        case HeadOnly():
            return 0
        case TopK(num_layers=num_layers):
            return num_layers
        case _:
            return None


def scripted(score_of: Callable[[int], float], *, full: float = 0.8) -> Callable[..., TrainedTask]:
    """A run with a known score; the full run scores `full`."""

    def run(recipe: Recipe) -> TrainedTask:
        layers = layers_of(recipe)
        score = full if layers is None else score_of(layers)
        return replace(TEMPLATE, recipe=recipe, scores=dict.fromkeys(TEMPLATE.scores, score))

    return run


def chosen(run: Callable[..., TrainedTask], **changes: JsonValue) -> Recipe:
    settings = read_settings({"layers": "auto", "target": 0.95, **QUICK, **changes})
    return choose_layers(BACKBONE, run, settings).recipe


@pytest.mark.parametrize("needed", range(NUM_LAYERS + 1))
def test_the_fewest_layers_that_keep_the_target_are_chosen(needed: int) -> None:
    found = chosen(scripted(lambda layers: 0.76 if layers >= needed else 0.75))

    assert layers_of(found) == needed
    assert found.layer_choice is not None
    assert found.layer_choice.layers == needed


@pytest.mark.parametrize("needed", range(NUM_LAYERS + 1))
def test_few_runs_find_them_and_all_are_recorded(needed: int) -> None:
    asked = list[int | None]()
    run = scripted(lambda layers: 0.9 if layers >= needed else 0.1)

    def counted(recipe: Recipe) -> TrainedTask:
        asked.append(layers_of(recipe))
        return run(recipe)

    found = chosen(counted)

    assert asked[0] is None  # the full run, for comparison
    assert found.layer_choice is not None
    assert [each.layers for each in found.layer_choice.runs] == asked[1:]
    assert len(found.layer_choice.runs) <= 3  # out of seven numbers of layers


def test_a_target_that_all_layers_miss_is_an_error_that_tells_what_was_tried() -> None:
    with raises("target_missed", match=r"6 layers 0\.5000") as caught:
        chosen(scripted(lambda _: 0.5))

    assert caught.value.fields["full_score"] == 0.8
    assert "tried: 3 layers 0.5000, 5 layers 0.5000, 6 layers 0.5000. Lower" in str(caught.value)


def test_full_fine_tuning_that_learns_nothing_has_no_share_to_keep() -> None:
    with raises("target_missed", match="no basis for a share"):
        chosen(scripted(lambda _: 0.9, full=0.0))


def test_numbers_of_layers_that_the_regularizer_cannot_use_are_left_out() -> None:
    found = chosen(scripted(lambda _: 0.9), regularizer={"name": "gradfreeze-topdown"}, epochs=2)

    assert layers_of(found) == 2


def test_a_head_alone_is_left_out_where_pretraining_needs_layers_to_move() -> None:
    found = chosen(scripted(lambda _: 0.9), tapt={"epochs": 1})

    assert layers_of(found) == 1


def test_a_choice_stands_in_the_settings_and_a_recipe_without_one_keeps_its_digest() -> None:
    recipe = default_recipe(HeadOnly())
    found = chosen(scripted(lambda _: 0.9))

    assert "layer_choice" not in recipe.settings()
    assert found.settings()["layer_choice"] is not None
    assert Recipe.model_validate(found.settings()) == found
