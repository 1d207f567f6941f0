"""Training of task versions: data, recipes, the loop and publishing."""

from nunatak_training.data import (
    Answers,
    AnswerSpan,
    Example,
    ExampleSet,
    LabelSet,
    Relevance,
    TaggedWords,
    TaskData,
    Word,
    load_examples,
    load_task_data,
)
from nunatak_training.errors import (
    CorruptResultError,
    DataError,
    DataNotFoundError,
    InvalidRecipeError,
    InvalidRowError,
    InvalidSweepError,
    MissingColumnError,
    SweepRunningError,
    TooFewExamplesError,
    TrainingDivergedError,
    TrainingError,
    UnknownLabelError,
    UnreadableFileError,
)
from nunatak_training.evaluation import evaluate
from nunatak_training.fitting import TrainedTask, branch_logits, fit_task
from nunatak_training.kinds import TaskKind
from nunatak_training.metrics import Metric
from nunatak_training.publishing import draft_trained, publish
from nunatak_training.recipes import Recipe, changed_recipe, default_recipe
from nunatak_training.report import EpochResult, ProgressBar, Report, SilentReport
from nunatak_training.scoring.labels import score
from nunatak_training.train import TrainOutcome, TrainSettings, train

__all__ = [
    "AnswerSpan",
    "Answers",
    "CorruptResultError",
    "DataError",
    "DataNotFoundError",
    "EpochResult",
    "Example",
    "ExampleSet",
    "InvalidRecipeError",
    "InvalidRowError",
    "InvalidSweepError",
    "LabelSet",
    "Metric",
    "MissingColumnError",
    "ProgressBar",
    "Recipe",
    "Relevance",
    "Report",
    "SilentReport",
    "SweepRunningError",
    "TaggedWords",
    "TaskData",
    "TaskKind",
    "TooFewExamplesError",
    "TrainOutcome",
    "TrainSettings",
    "TrainedTask",
    "TrainingDivergedError",
    "TrainingError",
    "UnknownLabelError",
    "UnreadableFileError",
    "Word",
    "branch_logits",
    "changed_recipe",
    "default_recipe",
    "draft_trained",
    "evaluate",
    "fit_task",
    "load_examples",
    "load_task_data",
    "publish",
    "score",
    "train",
]
