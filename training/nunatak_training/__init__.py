"""Training of task versions: data, recipes, the loop and publishing."""

from nunatak_training.data import Example, ExampleSet, TaskData, load_examples, load_task_data
from nunatak_training.errors import (
    DataError,
    DataNotFoundError,
    InvalidRecipeError,
    InvalidRowError,
    MissingColumnError,
    TooFewExamplesError,
    TrainingDivergedError,
    TrainingError,
    UnknownLabelError,
    UnreadableFileError,
)
from nunatak_training.fitting import TrainedTask, branch_logits, fit_task
from nunatak_training.metrics import Metric, score
from nunatak_training.publishing import draft_trained, publish
from nunatak_training.recipes import Recipe, changed_recipe, default_recipe
from nunatak_training.report import EpochResult, ProgressBar, Report, SilentReport
from nunatak_training.train import TrainOutcome, TrainSettings, train

__all__ = [
    "DataError",
    "DataNotFoundError",
    "EpochResult",
    "Example",
    "ExampleSet",
    "InvalidRecipeError",
    "InvalidRowError",
    "Metric",
    "MissingColumnError",
    "ProgressBar",
    "Recipe",
    "Report",
    "SilentReport",
    "TaskData",
    "TooFewExamplesError",
    "TrainOutcome",
    "TrainSettings",
    "TrainedTask",
    "TrainingDivergedError",
    "TrainingError",
    "UnknownLabelError",
    "UnreadableFileError",
    "branch_logits",
    "changed_recipe",
    "default_recipe",
    "draft_trained",
    "fit_task",
    "load_examples",
    "load_task_data",
    "publish",
    "score",
    "train",
]
