"""Conditions: whether the answer of a task decides a condition of a policy about a text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from nunatak_contract.enums import AggregationStrategy, HeadKind, OnLong, ProblemType
from nunatak_contract.errors import NunatakError
from nunatak_contract.policies import Condition, Policy, find_misfit
from nunatak_server.outputs.entities import EntityGroup, EntityOptions
from nunatak_server.outputs.outputs import PredictionOptions
from nunatak_server.outputs.scores import LabelScore
from nunatak_server.predict.types import TaskFailure, TaskPrediction

Answers = Mapping[str, TaskPrediction | TaskFailure]
"""The answers of tasks by reference. A task whose answer is not there yet is absent."""

OPTIONS: Final = PredictionOptions(
    # A part of a word must not stay readable, so spans cover whole words.
    entities=EntityOptions(aggregation=AggregationStrategy.FIRST),
    # Every part of a long text is judged, whatever the task does with long texts elsewhere.
    on_long=OnLong.WINDOWS,
    # A text must not hide a part of itself behind `[SEP]`.
    is_literal=True,
)
"""The options with which the tasks of a policy are asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSpan:
    """A part of a text by its positions in characters, with its label."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionState:
    """Whether a condition holds for a text; None without an answer that decides it."""

    holds: bool | None
    score: float | None = None
    """The largest score of the condition's labels; None if no answer has one."""
    spans: tuple[FoundSpan, ...] = ()
    """The parts of the text for which the condition holds."""
    is_complete: bool = True
    """Whether the answer decides about all labels of the condition."""


UNKNOWN: Final = ConditionState(holds=None, is_complete=False)


def find(
    condition: Condition, answer: TaskPrediction | TaskFailure | None, text: int
) -> ConditionState:
    """Return what an answer says about a condition and the text with this index.

    An answer that lacks one of the labels decides the condition only if another label is found.
    """
    if not isinstance(answer, TaskPrediction):
        return UNKNOWN
    match answer.head, answer.problem_type:
        case HeadKind.TOKEN_CLASSIFICATION, _:
            found = _find_spans(condition, answer, text)
        case HeadKind.SEQUENCE_CLASSIFICATION, ProblemType():
            found = _find_label(condition, answer, text)
        case _:
            return UNKNOWN
    if misfit_of(condition, answer) is None:
        return found
    return replace(found, is_complete=False) if found.holds else UNKNOWN


def misfit_of(condition: Condition, answer: TaskPrediction) -> str | None:
    """Return why an answer cannot decide a condition; None if it can."""
    return find_misfit(
        condition, kind=answer.head, problem_type=answer.problem_type, labels=answer.labels
    )


def failures_in(policy: Policy, answers: Answers) -> tuple[TaskFailure, ...]:
    """Return why conditions have no answer that decides them, once for each task reference."""
    failures = dict[str, TaskFailure]()
    for rule in policy.rules:
        for condition in rule.conditions:
            answer = answers.get(condition.task)
            if isinstance(answer, TaskFailure):
                failures[condition.task] = answer
            elif answer is not None and (problem := misfit_of(condition, answer)) is not None:
                error = NunatakError(
                    "rule_unanswerable", task=answer.task, version=answer.version, reason=problem
                )
                failures[condition.task] = TaskFailure(
                    reference=condition.task, error=error, task=answer.task
                )
    return tuple(failures.values())


def _find_spans(condition: Condition, answer: TaskPrediction, text: int) -> ConditionState:
    groups = cast("Sequence[EntityGroup]", answer.outputs[text])
    named = [it for it in groups if it["entity_group"] in condition.labels]
    least = condition.threshold
    found = [it for it in named if least is None or it["score"] >= least]
    return ConditionState(
        holds=bool(found),
        score=max((it["score"] for it in named), default=0.0),
        spans=tuple(
            FoundSpan(start=it["start"], end=it["end"], label=it["entity_group"]) for it in found
        ),
    )


def _find_label(condition: Condition, answer: TaskPrediction, text: int) -> ConditionState:
    scores = cast("Sequence[LabelScore]", answer.outputs[text])
    named = [it["score"] for it in scores if it["label"] in condition.labels]
    if not named:
        return UNKNOWN
    if condition.threshold is not None:
        holds = max(named) >= condition.threshold
    else:
        holds = not _predicted(answer, text).isdisjoint(condition.labels)
    return ConditionState(holds=holds, score=max(named))


def _predicted(answer: TaskPrediction, text: int) -> frozenset[str]:
    """Return the labels that a task predicts for a text; a regression predicts none."""
    predicted = None if answer.predicted is None else answer.predicted[text]
    match predicted:
        case str():
            return frozenset((predicted,))
        case tuple():
            return frozenset(predicted)
        case _:
            return frozenset()
