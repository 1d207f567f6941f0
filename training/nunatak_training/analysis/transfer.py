"""How a task that was learnt on one set, or in one language, does on others.

He et al. 2021 (arXiv:2106.03164), sec. 4: trained on English, tested on other languages without
any examples in them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nunatak_model import Backbone
from nunatak_training.data import ExampleSet, TaskData, load_examples
from nunatak_training.data.vocabulary import names_in
from nunatak_training.errors import UnknownLabelError
from nunatak_training.evaluation import evaluate
from nunatak_training.fitting import TrainedTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Scores of one trained task, in its own metric."""

    metric: str
    own: float
    """On the dev examples that it was chosen by."""
    others: Mapping[str, float]
    """By the name of the set."""


def load_test_set(path: Path, data: TaskData) -> ExampleSet:
    """Read a file of examples that a task can be scored on.

    Raises:
        DataError: the file is missing or broken.
        UnknownLabelError: it has a label that the task was not trained on.
    """
    examples = load_examples(path, kind=data.kind)
    known = set(data.labels)
    for example in examples:
        for label in names_in(example.label):
            if label not in known:
                raise UnknownLabelError(path.name, label, data.labels)
    return ExampleSet(examples=tuple(examples))


def transfer(trained: TrainedTask, tests: Mapping[str, ExampleSet], backbone: Backbone) -> Transfer:
    """Score a trained task on every set."""
    metric = next(iter(trained.scores))
    return Transfer(
        metric=metric.value,
        own=trained.scores[metric],
        others={
            name: evaluate(trained, examples, backbone)[metric] for name, examples in tests.items()
        },
    )
