"""Predictions: what is asked, what is answered, and how logits of rows become answers of tasks."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from nunatak_artifact import ArtifactError, LoadedTask
from nunatak_model import ModelError, TextInput
from nunatak_registry import RegistryError, TaskManifest
from nunatak_server.batching.rows import RowAnswer, RowOutcome
from nunatak_server.errors import ServerError
from nunatak_server.postprocess import LabelScore, ScoreOptions, label_scores

KnownError = RegistryError | ModelError | ArtifactError | ServerError
"""What one task of a request may fail with, while the others answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionRequest:
    """What is asked: every task about every input."""

    references: tuple[str, ...]
    inputs: tuple[TextInput, ...]
    options: ScoreOptions
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPrediction:
    """One task version's answer: a ranking of labels for each input."""

    reference: str
    task: str
    version: int
    outputs: tuple[list[LabelScore], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailure:
    """Why one task has no answer."""

    reference: str
    error: KnownError


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where the time of a request went: of its slowest row, where rows differ."""

    queue_s: float = 0.0
    tokenize_s: float = 0.0
    compute_s: float = 0.0
    batch_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The answers, in the order of the request's references."""

    results: tuple[TaskPrediction | TaskFailure, ...]
    timings: Timings


def results_of(
    request: PredictionRequest,
    found: Sequence[LoadedTask | KnownError],
    outcomes: Sequence[RowOutcome],
) -> tuple[TaskPrediction | TaskFailure, ...]:
    """Turn outcomes, task by task and input by input, into one result per reference.

    `found` holds, for each reference, the task that was asked or the reason why none was; only
    tasks have outcomes.
    """
    remaining = iter(outcomes)
    results: list[TaskPrediction | TaskFailure] = []
    for reference, task in zip(request.references, found, strict=True):
        if isinstance(task, LoadedTask):
            own = list(itertools.islice(remaining, len(request.inputs)))
            results.append(_result(reference, task.manifest, own, request.options))
        else:
            results.append(TaskFailure(reference=reference, error=task))
    return tuple(results)


def _result(
    reference: str,
    manifest: TaskManifest,
    outcomes: Sequence[RowOutcome],
    options: ScoreOptions,
) -> TaskPrediction | TaskFailure:
    outputs: list[list[LabelScore]] = []
    for outcome in outcomes:
        if isinstance(outcome, ServerError):
            return TaskFailure(reference=reference, error=outcome)
        scores = label_scores(
            outcome.logits,
            labels=manifest.head.labels,
            problem_type=manifest.head.problem_type,
            options=options,
        )
        outputs.append(scores)
    return TaskPrediction(
        reference=reference,
        task=manifest.task,
        version=manifest.version,
        outputs=tuple(outputs),
    )


def timings_of(outcomes: Sequence[RowOutcome], tokenize_s: float) -> Timings:
    """Return where the time went; failed rows have no times."""
    answers = [outcome for outcome in outcomes if isinstance(outcome, RowAnswer)]
    return Timings(
        queue_s=max((answer.queue_s for answer in answers), default=0.0),
        tokenize_s=tokenize_s,
        compute_s=max((answer.compute_s for answer in answers), default=0.0),
        batch_rows=max((answer.batch_rows for answer in answers), default=0),
    )
