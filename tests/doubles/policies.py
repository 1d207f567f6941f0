"""Policies and answers of tasks, written by hand."""

from collections.abc import Mapping, Sequence

from nunatak_contract.enums import (
    Combine,
    HeadKind,
    OnFailure,
    PolicyMode,
    ProblemType,
    VerdictAction,
)
from nunatak_contract.policies import Condition, Policy, Rule
from nunatak_server.outputs.entities import EntityGroup
from nunatak_server.outputs.scores import LabelScore
from nunatak_server.predict.types import TaskPrediction
from nunatak_server.tokenization import Extent
from nunatak_server.verdicts.conditions import FoundSpan

Scores = Mapping[str, float]
EXTENT = Extent(num_tokens=4, num_left_out=0, is_windowed=False)


def when(task: str, *labels: str, threshold: float | None = None) -> Condition:
    """Return a condition about one task."""
    return Condition(task=task, labels=labels, threshold=threshold)


def make_rule(
    *conditions: Condition,
    name: str = "first",
    action: VerdictAction = VerdictAction.BLOCK,
    combine: Combine = Combine.ANY,
    message: str | None = None,
) -> Rule:
    return Rule(name=name, conditions=conditions, action=action, combine=combine, message=message)


def make_policy(
    *rules: Rule,
    name: str = "guard",
    on_failure: OnFailure = OnFailure.BLOCK,
    mode: PolicyMode = PolicyMode.ENFORCE,
    deadline_ms: int | None = None,
) -> Policy:
    return Policy(name=name, rules=rules, on_failure=on_failure, mode=mode, deadline_ms=deadline_ms)


def scored(task: str, *texts: Scores, version: int = 1) -> TaskPrediction:
    """Return the answer of a task with one label per text; the scores of each text by label."""
    return TaskPrediction(
        reference=task,
        task=task,
        version=version,
        head=HeadKind.SEQUENCE_CLASSIFICATION,
        problem_type=ProblemType.SINGLE_LABEL,
        labels=tuple(texts[0]),
        outputs=tuple(
            [LabelScore(label=label, score=score) for label, score in scores.items()]
            for scores in texts
        ),
        predicted=tuple(max(scores, key=scores.__getitem__) for scores in texts),
        extents=(EXTENT,) * len(texts),
    )


def spanned(
    task: str, *texts: Sequence[FoundSpan], labels: Sequence[str] = ("O", "B-NAME", "I-NAME")
) -> TaskPrediction:
    """Return the answer of a token classification; the spans of each text, with score 0.9."""
    return TaskPrediction(
        reference=task,
        task=task,
        version=1,
        head=HeadKind.TOKEN_CLASSIFICATION,
        problem_type=None,
        labels=tuple(labels),
        outputs=tuple(
            [
                EntityGroup(entity_group=it.label, score=0.9, word="", start=it.start, end=it.end)
                for it in spans
            ]
            for spans in texts
        ),
        predicted=None,
        extents=(EXTENT,) * len(texts),
    )


def span(start: int, end: int, label: str = "NAME") -> FoundSpan:
    return FoundSpan(start=start, end=end, label=label)
