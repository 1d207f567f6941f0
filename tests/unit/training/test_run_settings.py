"""Laws of settings by name, equal in options, task files and sweep files."""

import pytest
from pydantic import JsonValue

from doubles.backbones import tiny_backbone
from doubles.refusals import raises
from nunatak_contract.enums import AdaptedBlocks, LinearMap, MethodKind
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, Full, HeadOnly, Lora, Method, TopK
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.fitting import method_on
from nunatak_training.recipes import METHODS, Recipe, default_recipe
from nunatak_training.run_settings import all_settings, read_settings
from nunatak_training.settings import flattened, overlaid

CONFIG = tiny_backbone(num_layers=3).config


@pytest.mark.parametrize(
    ("named", "method"),
    [
        ({}, TopK(num_layers=2)),
        ({"layers": 3}, TopK(num_layers=3)),
        ({"layers": "3"}, TopK(num_layers=3)),
        ({"frozen": 1}, TopK(num_layers=2)),
        ({"frozen": "0"}, TopK(num_layers=3)),
        ({"frozen": 3}, HeadOnly()),
        ({"method": "head"}, HeadOnly()),
        (
            {"method": "bottleneck", "size": "8", "first_layer": 2, "blocks": "attention"},
            Bottleneck(size=8, first_layer=2, blocks=AdaptedBlocks.ATTENTION),
        ),
        (
            {"method": "lora", "rank": 4, "alpha": "8"},
            Lora(rank=4, alpha=8.0, targets=QUERY_AND_VALUE),
        ),
        (
            {"method": "lora", "targets": "query, feedforward_in"},
            Lora(targets=(LinearMap.QUERY, LinearMap.FEEDFORWARD_IN), rank=8, alpha=16.0),
        ),
        (
            {"method": "lora", "targets": ["key"]},
            Lora(targets=(LinearMap.KEY,), rank=8, alpha=16.0),
        ),
        ({"method": "full"}, Full()),
    ],
)
def test_names_become_the_method(named: dict[str, JsonValue], method: Method) -> None:
    assert method_on(read_settings(named), CONFIG) == method


def test_every_method_has_defaults() -> None:
    assert METHODS.keys() == {kind.value for kind in MethodKind}


@pytest.mark.parametrize(
    "named",
    [
        {"tapt": {"epochs": 2, "learning_rate": 1e-4}, "regularizer": {"name": "graddrop"}},
        {"tapt.epochs": "2", "tapt.learning_rate": "1e-4", "regularizer.name": "graddrop"},
    ],
)
def test_texts_with_dots_say_what_values_in_mappings_say(named: dict[str, JsonValue]) -> None:
    recipe = default_recipe(TopK(num_layers=2), changes=read_settings(named).changes)

    assert recipe.tapt is not None
    assert (recipe.tapt.epochs, recipe.tapt.learning_rate) == (2, 1e-4)
    assert (recipe.regularizer.name, recipe.dropout) == ("graddrop", 0)


def test_null_takes_a_setting_away_but_may_be_a_label() -> None:
    named: dict[str, JsonValue] = {"tapt": "null", "head_learning_rate": "null"}
    labels: dict[str, JsonValue] = {"metric": "f1", "positive_label": "null"}

    recipe = default_recipe(TopK(num_layers=2), changes=read_settings({**named, **labels}).changes)

    assert (recipe.tapt, recipe.head_learning_rate) == (None, None)
    assert recipe.positive_label == "null"


@pytest.mark.parametrize(("named", "target"), [({}, 0.95), ({"target": "0.9"}, 0.9)])
def test_layers_that_are_to_be_found_have_a_share_to_keep(
    named: dict[str, JsonValue], target: float
) -> None:
    assert read_settings({"layers": "auto", **named}).layer_target == target
    assert read_settings({"layers": 2}).layer_target is None


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ({"epoch": 3}, "no setting 'epoch'; the nearest is 'epochs'. All: method, layers, .*seed"),
        ({"rank": 4}, "rank belongs to method lora, not to topk"),
        ({"method": "lora", "layers": 2}, "layers belongs to method topk, not to lora"),
        ({"method": "head", "first_layer": 2}, "belongs to method bottleneck and lora"),
        ({"method": "magic"}, "method must be one of topk, .* got 'magic'"),
        ({"method": "lora", "targets": "query,head"}, "targets.1: "),
        ({"method": "lora", "rank": 0}, "rank: "),
        ({"layers": "some"}, "layers: must be a number from 1 up or auto, got 'some'"),
        ({"layers": 0}, "layers: must be a number from 1 up or auto"),
        ({"layers": 1, "frozen": 1}, "give one of them"),
        ({"layers": "auto", "frozen": 1}, "give one of them"),
        ({"target": 0.9}, "target belongs to layers auto"),
        ({"layers": 2, "target": 0.9}, "target belongs to layers auto"),
        ({"layers": "auto", "target": 1.5}, "target: "),
        ({"epochs": "many"}, "epochs: "),
        ({"epochs.first": 1}, "no setting 'epochs.first'"),
        ({"backbone": "minilm"}, "no setting 'backbone'"),
        ({"method": "head", "tapt.epochs": 2}, "tapt trains layers or adapters"),
        ({"dropout": 0.5, "regularizer.name": "mixout"}, "replaces dropout"),
        ({"epochs": 0}, "epochs: "),
        ({"learning_rate": -1e-4}, "learning_rate: "),
        ({"dropout": 1.0}, "dropout: "),
        ({"tapt.epoch": 3}, "nearest is 'tapt.epochs'"),
        ({"regularizer": "mixout"}, "nearest is 'regularizer.name'"),
        ({"regularizer.rate": 0.1}, "needs regularizer.name"),
        ({"regularizer": {"name": "graddrop", "rate": 1.0}}, "rate"),
        ({"regularizer": {"name": "graddrop-epoch", "rate": 0.2}}, "has no rate, got 0.2"),
        ({"regularizer": {"name": "nograd"}}, "regularizer.name: expected 'none', 'graddrop'"),
        ({"layer_choice": None}, "no setting 'layer_choice'"),
        ({"metric": "f1"}, "need each other"),
        ({"positive_label": "yes"}, "need each other"),
        ({"thresholds": "f1"}, "thresholds 'f1' needs calibrate true"),
    ],
)
def test_what_does_not_fit_is_named(named: dict[str, JsonValue], problem: str) -> None:
    with pytest.raises(InvalidRecipeError, match=problem):
        read_settings(named)


def test_layers_that_the_backbone_has_not_are_refused() -> None:
    for named in ({"frozen": 4}, {"layers": 4}):
        with raises("invalid_method", match="3 layers"):
            method_on(read_settings(named), CONFIG)


def test_every_field_of_recipes_and_methods_is_listed_with_what_it_may_be() -> None:
    listed = {setting.name: setting for setting in all_settings()}
    recipe = default_recipe(TopK(num_layers=2), changes={"tapt.epochs": 1}).settings()

    names = {name for name in flattened(recipe) if name.split(".")[0] not in {"backbone", "method"}}
    assert names | {"rank", "alpha", "targets", "size", "first_layer", "layers"} <= listed.keys()
    assert {it.name for it in listed.values() if not it.description} == set()
    assert {it.name for it in listed.values() if not it.values or not it.default} == set()
    assert (listed["rank"].default, listed["epochs"].default) == ("8", "by method")
    assert listed["optimizer"].values == "adamw|adam|sgd"
    assert listed["epochs"].values == "a whole number from 1 to 10,000"


def test_what_is_listed_as_a_default_is_the_default() -> None:
    fields = default_recipe(TopK(num_layers=2)).settings().keys() - {"method", "positive_label"}
    named = {
        it.name: it.default
        for it in all_settings()
        if it.name in fields and not it.default.startswith("by ")
    }

    assert default_recipe(TopK(num_layers=2), changes=dict(named)) == default_recipe(
        TopK(num_layers=2)
    )


def test_a_later_layer_replaces_a_group_that_it_names() -> None:
    earlier: dict[str, JsonValue] = {"regularizer": {"name": "mixout", "rate": 0.5}, "epochs": 1}

    assert overlaid(earlier, {"regularizer.name": "graddrop"}) == {
        "epochs": 1,
        "regularizer.name": "graddrop",
    }
    assert overlaid(earlier, {"regularizer.rate": 0.1})["regularizer.name"] == "mixout"
    assert overlaid({"tapt.epochs": 2}, {"tapt": None}) == {"tapt": None}


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


LATER: dict[str, JsonValue] = {
    "patience": 3,
    "precision": "bfloat16",
    "teacher_temperature": 9.0,
    "default_label": "none",
    "joined_share": 0.5,
    "calibrate": True,
    "on_long": "cut",
    "layer_choice": {"target": 0.9, "full_score": 0.8, "runs": [], "layers": 2},
}
"""Settings of later releases, which a recipe of before lacks, each with a value."""


def test_a_setting_of_a_later_release_is_in_a_digest_only_where_it_is_set() -> None:
    plain = default_recipe(TopK(num_layers=2), changes={"patience": None})

    assert not (LATER.keys() | {"thresholds"}) & plain.settings().keys()
    assert Recipe.model_validate(plain.settings()) == plain


@pytest.mark.parametrize(
    ("name", "value"), [*LATER.items(), ("seed", 1), ("regularizer", {"name": "graddrop"})]
)
def test_any_change_is_recorded_and_changes_the_digest(name: str, value: JsonValue) -> None:
    plain = default_recipe(TopK(num_layers=2), changes={"patience": None, "dropout": 0.0})
    changed = Recipe.model_validate({**plain.settings(), name: value})

    assert changed.digest != plain.digest
    assert Recipe.model_validate(changed.settings()) == changed
