"""Adoption: how well a trained task agrees with its teacher on examples that taught nothing."""

from collections.abc import Sequence
from dataclasses import replace

from nunatak_contract.evidence import MetricRecord, TeacherRecord
from nunatak_model import Backbone
from nunatak_training.data import Example, ExampleSet, LabelSet, TaskData
from nunatak_training.fitting import TrainedTask, evaluate
from nunatak_training.kinds import Metric, TaskKind
from nunatak_training.publishing import metric_records
from nunatak_training.scoring.evaluation import ExampleAnswer, evaluation_of


def teacher_record(trained: TrainedTask, backbone: Backbone) -> TeacherRecord | None:
    """The evidence of a taught task: agreement, and both scores where texts have own labels."""
    data = trained.data
    if data.teacher is None:
        return None
    held = (data.test or data.dev).examples
    is_value = data.kind is TaskKind.REGRESSION

    def measured(examples: Sequence[Example], metric: Metric) -> MetricRecord:
        found = ExampleSet(examples=tuple(examples))
        scores = evaluate(trained, found, backbone, (metric,))
        return metric_records(scores.values, scores.intervals, found)[0]

    agreement = measured(
        [replace(it, label=it.taught.label) for it in held if it.taught is not None],
        Metric.SPEARMAN if is_value else Metric.ACCURACY,
    )
    labelled = [it for it in held if it.taught is not None and it.taught.has_label]
    metric = Metric.SPEARMAN if is_value else Metric.F1_MACRO
    return TeacherRecord(
        name=data.teacher.name,
        digest=data.teacher.digest,
        num_texts=data.teacher.num_texts,
        seconds=data.teacher.seconds,
        agreement=agreement,
        score=_score(labelled, data, metric) if labelled else None,
        own_score=measured(labelled, metric) if labelled else None,
    )


def _score(labelled: Sequence[Example], data: TaskData, metric: Metric) -> MetricRecord:
    """The teacher's score on examples with labels of their own."""
    examples = ExampleSet(examples=tuple(labelled))
    found = evaluation_of(data.kind, data.labels, examples, [_said(it) for it in labelled])
    intervals = {it: found.intervals[it] for it in (metric,) if it in found.intervals}
    return metric_records({metric: found.metrics[metric]}, intervals, examples)[0]


def _said(example: Example) -> ExampleAnswer:
    label = None if example.taught is None else example.taught.label
    label = label.names if isinstance(label, LabelSet) else label
    if not isinstance(label, str | float | tuple):
        raise TypeError(f"a teacher says no {label!r}")
    return ExampleAnswer(value=label, scores=dict(example.shares))
