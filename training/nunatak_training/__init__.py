"""Training of task versions: data, recipes, the loop and publishing."""

from nunatak_training.cache import (
    CACHE_VARIABLE,
    CacheContents,
    StoredCheckpoint,
    cache_contents,
    clear_cache,
    default_cache_folder,
)
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
from nunatak_training.errors import InvalidRecipeError, TrainingDivergedError
from nunatak_training.fitting import TrainedTask, branch_logits, evaluate, fit_task
from nunatak_training.kinds import Metric, TaskKind
from nunatak_training.loop.checkpoint import Checkpoint, held_checkpoint, run_key
from nunatak_training.publishing import draft_trained, publish
from nunatak_training.recipes import LayerChoice, LayerRun, Recipe, changed_recipe, default_recipe
from nunatak_training.report import EpochResult, ProgressBar, Report, SilentReport
from nunatak_training.run_settings import RunSettings, all_settings, read_settings
from nunatak_training.scoring.counts import score
from nunatak_training.train import ChosenTask, TrainOutcome, TrainSettings, choose_layers, train
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
    "RunSettings",
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
    "TrunkStore",
    "UnknownLabelError",
    "UnpublishableError",
    "UnreadableFileError",
    "Word",
    "all_settings",
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
    "read_settings",
    "run_key",
    "score",
    "train",
]
