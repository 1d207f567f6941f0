"""The fewest tuned layers that keep a share of full fine-tuning's dev score.

The operating point of Lee, Tang and Lin 2019, "What Would Elsa Do? Freezing Layers During
Transformer Fine-Tuning", sec. 3 and 4: there every number of layers is trained and the smallest is
read off a table. Here the numbers are halved: assumed is that a number of layers that reaches the
target is not followed by larger ones that miss it. Near the target seeds may tip a run either way;
one run a number does not see that.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from nunatak_artifact import method_record
from nunatak_model import Backbone, Full, HeadOnly, TopK
from nunatak_training.errors import InvalidRecipeError, TargetMissedError
from nunatak_training.fitting import TrainedTask
from nunatak_training.recipes import LayerChoice, LayerRun, Recipe, default_recipe
from nunatak_training.regularizers import check_method

RunRecipe = Callable[[Recipe], TrainedTask]
"""Trains one recipe on the data in question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenTask:
    """The task with the fewest layers, and how they were found."""

    trained: TrainedTask
    """Its recipe records the choice."""
    choice: LayerChoice


def choose_layers(
    backbone: Backbone, run: RunRecipe, *, target: float, changes: Mapping[str, JsonValue]
) -> ChosenTask:
    """Train in full, then by halves the numbers of top layers, from a head alone to all of them.

    About log2 of the layers runs, besides the full one. All share `changes`; what these leave open
    is as usual for each method.

    Raises:
        TargetMissedError: not even all layers reach the target, or full fine-tuning learns nothing.
        TrainingError: a run is at fault.
    """
    whole = default_recipe(Full(), backbone=backbone.name, changes=changes)
    recipes = _candidates(backbone, changes)
    full = _score(run(whole))
    if full <= 0:
        raise TargetMissedError(target, full, ())
    runs = dict[int, float]()
    best: TrainedTask | None = None
    low, high = 0, len(recipes)
    while low < high:
        middle = (low + high) // 2
        num_layers, recipe = recipes[middle]
        trained = run(recipe)
        runs[num_layers] = _score(trained)
        if runs[num_layers] >= target * full:
            best, high = trained, middle
        else:
            low = middle + 1
    made = tuple(LayerRun(layers=layers, score=score) for layers, score in runs.items())
    if best is None:
        raise TargetMissedError(target, full, tuple(runs.items()))
    choice = LayerChoice(target=target, full_score=full, runs=made, layers=recipes[high][0])
    return ChosenTask(trained=best.with_choice(choice), choice=choice)


def _candidates(
    backbone: Backbone, changes: Mapping[str, JsonValue]
) -> Sequence[tuple[int, Recipe]]:
    """The recipes to choose from, by their number of layers.

    Numbers that make no sense with `changes` are left out: too few layers for the regularizer, and
    a head alone where pretraining needs layers to move.
    """
    found = list[tuple[int, Recipe]]()
    for num_layers in range(backbone.config.num_layers + 1):
        method = TopK(num_layers=num_layers) if num_layers else HeadOnly()
        try:
            recipe = default_recipe(method, backbone=backbone.name, changes=changes)
            check_method(recipe.regularizer, method_record(method))
        except InvalidRecipeError:
            continue
        found.append((num_layers, recipe))
    return found


def _score(trained: TrainedTask) -> float:
    return next(iter(trained.scores.values()))
