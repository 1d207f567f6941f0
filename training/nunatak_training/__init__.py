"""Training of task versions: data, recipes, the loop and publishing."""

from nunatak_training.cache.contents import (
    CacheContents,
    StoredCheckpoint,
    cache_contents,
    clear_cache,
)
from nunatak_training.cache.folder import CACHE_VARIABLE, default_cache_folder
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
    AlreadyTrainingError,
    CacheError,
    CorruptResultError,
    DataError,
    DataNotFoundError,
    InvalidRecipeError,
    InvalidRowError,
    InvalidSweepError,
    MissingColumnError,
    SweepRunningError,
    TargetMissedError,
    TooFewExamplesError,
    TrainingDivergedError,
    TrainingError,
    UnknownLabelError,
    UnpublishableError,
    UnreadableFileError,
)
from nunatak_training.evaluation import evaluate
from nunatak_training.fitting import TrainedTask, branch_logits, fit_task
from nunatak_training.kinds import TaskKind
from nunatak_training.layer_choice import ChosenTask, choose_layers
from nunatak_training.loop.checkpoints import Checkpoint, held_checkpoint, run_key
from nunatak_training.metrics import Metric
from nunatak_training.publishing import draft_trained, publish
from nunatak_training.recipes import LayerChoice, LayerRun, Recipe, changed_recipe, default_recipe
from nunatak_training.report import EpochResult, ProgressBar, Report, SilentReport
from nunatak_training.scoring.labels import score
from nunatak_training.train import TrainOutcome, TrainSettings, train
from nunatak_training.trunk import DiskTrunkStore, MemoryTrunkStore, TrunkStore

__all__ = [
    "CACHE_VARIABLE",
    "AlreadyTrainingError",
    "AnswerSpan",
    "Answers",
    "CacheContents",
    "CacheError",
    "Checkpoint",
    "ChosenTask",
    "CorruptResultError",
    "DataError",
    "DataNotFoundError",
    "DiskTrunkStore",
    "EpochResult",
    "Example",
    "ExampleSet",
    "InvalidRecipeError",
    "InvalidRowError",
    "InvalidSweepError",
    "LabelSet",
    "LayerChoice",
    "LayerRun",
    "MemoryTrunkStore",
    "Metric",
    "MissingColumnError",
    "ProgressBar",
    "Recipe",
    "Relevance",
    "Report",
    "SilentReport",
    "StoredCheckpoint",
    "SweepRunningError",
    "TaggedWords",
    "TargetMissedError",
    "TaskData",
    "TaskKind",
    "TooFewExamplesError",
    "TrainOutcome",
    "TrainSettings",
    "TrainedTask",
    "TrainingDivergedError",
    "TrainingError",
    "TrunkStore",
    "UnknownLabelError",
    "UnpublishableError",
    "UnreadableFileError",
    "Word",
    "branch_logits",
    "cache_contents",
    "changed_recipe",
    "choose_layers",
    "clear_cache",
    "default_cache_folder",
    "default_recipe",
    "draft_trained",
    "evaluate",
    "fit_task",
    "held_checkpoint",
    "load_examples",
    "load_task_data",
    "publish",
    "run_key",
    "score",
    "train",
]
