"""Errors of training.

TrainingError
+-- DataError                   examples that cannot be trained on; the message starts with where
|   +-- DataNotFoundError       no such file, folder, split or data set
|   +-- UnreadableFileError     a file whose content does not match its name (format, encoding)
|   +-- MissingColumnError      a file without a column that is needed
|   +-- InvalidRowError         one row that breaks the rules of an example
|   +-- UnknownLabelError       a dev row with a label that no train row has
|   +-- TooFewExamplesError     a data set, class or split that is too small to learn from
+-- InvalidRecipeError          settings that contradict each other or the data
+-- TrainingDivergedError       the loss or a gradient stopped being a number
+-- TargetMissedError           no number of tuned layers keeps the share asked for
+-- UnpublishableError          a version's manifest has no room for something
+-- AlreadyTrainingError        another process is at exactly this run
+-- CacheError                  the cache folder cannot be read or written
+-- InvalidSweepError           a sweep file or options that describe no sweep
+-- SweepRunningError           another sweep writes to the results folder
+-- CorruptResultError          a file of the results folder that no sweep wrote
"""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from nunatak_training.kinds import TaskKind

_PAIR = "and, for pairs, 'text_pair'"
_NEEDED: Mapping[TaskKind, str] = {
    TaskKind.SINGLE_LABEL: f"'text', 'label' {_PAIR}",
    TaskKind.MULTI_LABEL: f"'text', 'labels' {_PAIR}",
    TaskKind.REGRESSION: f"'text', 'label' {_PAIR}",
    TaskKind.TOKEN_CLASSIFICATION: "'tokens' and 'tags'",
    TaskKind.QUESTION_ANSWERING: "'question', 'context' and 'answers'",
    TaskKind.RANKING: "'query', 'document', 'label' (or 'query', 'documents', 'relevance')",
}


class TrainingError(Exception):
    """Base of every error this package raises on purpose."""

    code: ClassVar[str] = "training_error"


class DataError(TrainingError):
    """Examples that cannot be trained on.

    `where` names the place as people look for it: `train.jsonl:17` or `train.jsonl`.
    """

    code = "invalid_data"

    def __init__(self, where: str, problem: str) -> None:
        self.where = where
        self.problem = problem
        super().__init__(f"{where}: {problem}")


class DataNotFoundError(DataError):
    """No such file, folder, split or data set."""

    code = "data_not_found"


class UnreadableFileError(DataError):
    """A file whose content does not match its name."""

    code = "unreadable_file"


class MissingColumnError(DataError):
    """A file without a column that is needed."""

    code = "missing_column"

    def __init__(self, where: str, column: str, found: tuple[str, ...], *, kind: TaskKind) -> None:
        self.column = column
        self.found = found
        self.kind = kind
        shown = ", ".join(map(repr, found[:20])) or "none"
        super().__init__(
            where, f"no column {column!r}; found {shown}. A {kind} task needs {_NEEDED[kind]}"
        )


class InvalidRowError(DataError):
    """One row that breaks the rules of an example."""

    code = "invalid_row"


class UnknownLabelError(DataError):
    """A dev row with a label that no train row has."""

    code = "unknown_label"

    def __init__(self, where: str, label: str, known: tuple[str, ...]) -> None:
        self.label = label
        self.known = known
        super().__init__(
            where,
            f"label {label!r} does not occur in the train examples, whose labels are "
            f"{', '.join(map(repr, known[:20]))}",
        )


class TooFewExamplesError(DataError):
    """A data set, class or split that is too small to learn from."""

    code = "too_few_examples"


class InvalidRecipeError(TrainingError):
    """Settings that contradict each other or the data."""

    code = "invalid_recipe"


class TrainingDivergedError(TrainingError):
    """The loss or a gradient stopped being a number; nothing was published."""

    code = "training_diverged"

    def __init__(self, step: int, learning_rate: float) -> None:
        self.step = step
        self.learning_rate = learning_rate
        super().__init__(
            f"the loss or its gradient is not finite at step {step} (learning rate "
            f"{learning_rate:g}); lower the learning rate, or raise warmup_share"
        )


class TargetMissedError(TrainingError):
    """No number of tuned layers keeps the requested share of full fine-tuning's score."""

    code = "target_missed"

    def __init__(
        self, target: float, full_score: float, runs: tuple[tuple[int, float], ...]
    ) -> None:
        self.target = target
        self.full_score = full_score
        self.runs = runs
        if full_score <= 0:
            found = "which no share of can be kept; train longer, or at another learning rate"
        else:
            tried = ", ".join(f"{layers} layers {score:.4f}" for layers, score in runs)
            found = (
                f"of which {target:g} is {target * full_score:.4f}; tried: {tried}. Lower "
                "--target, or name --layers or --method full"
            )
        super().__init__(f"full fine-tuning scores {full_score:.4f}, {found}")


class UnpublishableError(TrainingError):
    """A version has a part that its manifest cannot hold; `place` names the part."""

    code = "unpublishable"

    def __init__(self, place: str, problem: str) -> None:
        self.place = place
        self.problem = problem
        super().__init__(
            f"a version with this {place} could not be published: {place}: {problem}; change it "
            "before training"
        )


class AlreadyTrainingError(TrainingError):
    """Another process is at exactly this run."""

    code = "already_training"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(
            f"another process trains the same task on the same data by the same recipe (its "
            f"checkpoint in {folder} is in use); wait for it, or train anyway with --no-resume"
        )


class CacheError(TrainingError):
    """The cache folder cannot be read or written."""

    code = "cache_unusable"

    def __init__(self, folder: Path, problem: str) -> None:
        self.folder = folder
        self.problem = problem
        super().__init__(
            f"the cache folder {folder} cannot be used: {problem}; make room there or let it be "
            "written, name another one in NUNATAK_CACHE, or go without (--no-cache, --no-resume)"
        )


class InvalidSweepError(TrainingError):
    """A sweep file or options that describe no sweep; `where` names the file or the axis."""

    code = "invalid_sweep"

    def __init__(self, where: str, problem: str) -> None:
        self.where = where
        self.problem = problem
        super().__init__(f"{where}: {problem}")


class SweepRunningError(TrainingError):
    """Another sweep writes to the results folder."""

    code = "sweep_running"

    def __init__(self, folder: str) -> None:
        self.folder = folder
        super().__init__(
            f"another sweep writes to {folder}; wait for it, or name another folder (--results)"
        )


class CorruptResultError(TrainingError):
    """A file of the results folder that no sweep wrote."""

    code = "corrupt_result"

    def __init__(self, file: str, problem: str) -> None:
        self.file = file
        self.problem = problem
        super().__init__(f"{file} is no result of a sweep ({problem}); move it away to go on")
