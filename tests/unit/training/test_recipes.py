import pytest
from pydantic import JsonValue

from nunatak_contract.methods import HeadOnly, TopK
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.kinds import Metric
from nunatak_training.recipes import Recipe, default_recipe


def test_head_alone_learns_faster_than_layers_and_a_head_faster_than_its_layers() -> None:
    head = default_recipe(HeadOnly())
    layers = default_recipe(TopK(num_layers=2))

    assert layers.head_learning_rate is not None
    assert layers.learning_rate < layers.head_learning_rate < head.learning_rate


def test_changes_replace_single_settings() -> None:
    recipe = default_recipe(TopK(num_layers=2), changes={"epochs": 7, "metric": "f1_macro"})

    assert recipe.epochs == 7
    assert recipe.metric is Metric.F1_MACRO
    assert recipe.learning_rate == default_recipe(TopK(num_layers=2)).learning_rate


def test_named_epochs_are_not_stretched_to_reach_a_number_of_steps() -> None:
    assert default_recipe(TopK(num_layers=2)).min_steps > 0
    assert default_recipe(TopK(num_layers=2), changes={"epochs": 2}).min_steps == 0
    assert default_recipe(TopK(num_layers=2), changes={"epochs": 2, "min_steps": 9}).min_steps == 9


def test_patience_ends_runs_by_default_and_not_where_every_epoch_was_asked_for() -> None:
    def patience(**changes: JsonValue) -> int | None:
        return default_recipe(TopK(num_layers=2), changes=changes).patience

    assert patience() is not None
    assert patience(patience="null") is None
    assert patience(epochs=9) is None
    assert patience(epochs=9, patience=2) == 2
    assert patience(regularizer={"name": "gradfreeze-topdown"}) is None
    assert patience(regularizer={"name": "mixout"}) == patience()


def test_a_recipe_without_patience_has_the_digest_of_the_time_before_patience() -> None:
    recipe = default_recipe(TopK(num_layers=2), changes={"patience": None})

    assert "patience" not in recipe.settings()
    assert Recipe.model_validate(recipe.settings()).patience is None


def test_any_change_changes_the_digest() -> None:
    recipe = default_recipe(TopK(num_layers=2))

    assert recipe.digest == default_recipe(TopK(num_layers=2)).digest
    assert recipe.digest != default_recipe(TopK(num_layers=2), changes={"seed": 1}).digest
    assert recipe.digest != default_recipe(TopK(num_layers=1)).digest


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        pytest.param(
            {"epoch": 3}, "no setting 'epoch'; the nearest is 'epochs'", id="unknown-setting"
        ),
        pytest.param({"epochs": 0}, "epochs: ", id="no-epochs"),
        pytest.param({"learning_rate": -1e-4}, "learning_rate: ", id="negative-rate"),
        pytest.param({"tapt.epoch": 3}, "nearest is 'tapt.epochs'", id="unknown-inner-setting"),
        pytest.param({"regularizer": "mixout"}, "nearest is 'regularizer.name'", id="group"),
        pytest.param({"regularizer.rate": 0.1}, "needs regularizer.name", id="rate-of-none"),
        pytest.param({"layer_choice": None}, "no setting 'layer_choice'", id="no-setting"),
        pytest.param({"dropout": 1.0}, "dropout: ", id="all-dropped"),
        pytest.param({"metric": "f1"}, "need each other", id="f1-without-label"),
        pytest.param({"positive_label": "yes"}, "need each other", id="label-without-f1"),
    ],
)
def test_settings_that_do_not_fit_are_named(changes: dict[str, JsonValue], problem: str) -> None:
    with pytest.raises(InvalidRecipeError, match=problem):
        default_recipe(TopK(num_layers=2), changes=changes)
