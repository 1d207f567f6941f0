"""Scores of a trained task on examples that it was neither trained nor chosen on."""

from collections.abc import Mapping

from nunatak_model import Backbone
from nunatak_training.data import ExampleSet
from nunatak_training.fitting import TrainedTask, branch_logits
from nunatak_training.loop.fit import predict
from nunatak_training.metrics import Metric
from nunatak_training.objectives import objective_of


def evaluate(
    trained: TrainedTask, examples: ExampleSet, backbone: Backbone
) -> Mapping[Metric, float]:
    """Return the scores that were reported on dev, in their order, of other examples.

    Raises:
        KeyError: the examples have a label that the task was not trained on.
        TypeError: the examples are of another kind of task.
    """
    recipe = trained.recipe
    objective = objective_of(trained.data, positive_label=recipe.positive_label)
    encoded = objective.encode(examples, backbone.tokenizer, max_length=recipe.max_length)
    logits = predict(branch_logits(backbone, trained.spec, trained.parameters), encoded.encodings)
    statistics = objective.statistics(examples, encoded, logits)
    return {metric: statistics.value(metric) for metric in trained.scores}
