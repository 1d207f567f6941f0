"""The scores of a task on other sets or languages than in training.

He et al. 2021 (arXiv:2106.03164), sec. 4: trained on English, tested on other languages without
any training examples in these languages.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from nunatak_model import Backbone
from nunatak_training.data import ExampleSet
from nunatak_training.fitting import TrainedTask, evaluate


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Scores of one trained task, in its own metric."""

    metric: str
    own: float
    """On the dev examples that chose the epoch."""
    others: Mapping[str, float]
    """Scores on the other sets, by the name of the set."""


def transfer(trained: TrainedTask, tests: Mapping[str, ExampleSet], backbone: Backbone) -> Transfer:
    """Score a trained task on every set."""
    metric = next(iter(trained.scores))
    return Transfer(
        metric=metric.value,
        own=trained.scores[metric],
        others={
            name: evaluate(trained, examples, backbone).values[metric]
            for name, examples in tests.items()
        },
    )
