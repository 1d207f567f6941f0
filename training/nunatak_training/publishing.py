"""Publishing: a trained task becomes a version in the registry."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import cast

from pydantic import TypeAdapter, ValidationError

from nunatak_contract import evidence
from nunatak_contract.enums import HeadKind, Reads
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import Note, TaskManifest
from nunatak_contract.record import problems_of
from nunatak_model import Backbone, TextInput, parameter_shapes
from nunatak_registry import Registry
from nunatak_training.data import Example, ExampleSet, Label, LabelSet, TaskData
from nunatak_training.data.rows import label_of
from nunatak_training.fitting import TrainedTask, branch_spec, evaluate
from nunatak_training.kinds import Metric, TaskKind
from nunatak_training.recipes import Recipe
from nunatak_training.scoring.evaluation import statistics_of
from nunatak_versions import Provenance, VersionDraft, draft_task, head_record

NUM_PROBE_INPUTS = 4
MAX_PROBE_CHARS = 4096
LEAST_DEFAULT_SHARE = 0.7


def publish(
    trained: TrainedTask,
    registry: Registry,
    backbone: Backbone,
    *,
    task: str,
    created_at: datetime,
    note: str = "",
) -> TaskManifest:
    """The next version of `task`, or an equal version that the registry has."""
    draft = draft_trained(trained, backbone, task=task, created_at=created_at, note=note)
    return registry.publish(draft.manifest, draft.blobs)


def check_publishable(data: TaskData, recipe: Recipe, backbone: Backbone, *, note: str) -> int:
    """Called before training; returns the number of bytes of the parameters."""
    spec = branch_spec(recipe, backbone, kind=data.kind.head, num_outputs=len(data.labels))
    parts: dict[str, Callable[[], object]] = {
        "note": lambda: TypeAdapter(Note).validate_python(note),
        "data": lambda: _data_record(data),
        "head": lambda: head_record(spec.head, data.labels, data.kind.problem_type),
    }
    for part, record in parts.items():
        try:
            record()
        except ValidationError as error:
            place, problem = problems_of(error)[0]
            place = f"{part}.{place}".removesuffix(".")
            raise NunatakError("unpublishable", place=place, problem=problem) from error
    return sum(4 * math.prod(it) for it in parameter_shapes(spec, backbone.config).values())


def draft_trained(
    trained: TrainedTask, backbone: Backbone, *, task: str, created_at: datetime, note: str = ""
) -> VersionDraft:
    recipe, test, calibration = trained.recipe, trained.test, trained.calibration
    if calibration is not None and test is not None:
        calibration = calibration.model_copy(update={"test": test.reliability})
    return draft_task(
        task,
        method=trained.spec.method,
        head=head_record(
            trained.spec.head,
            trained.data.labels,
            trained.data.kind.problem_type,
            default_label=default_label_of(trained.data, recipe),
            thresholds=trained.thresholds,
        ),
        reads=reads_of(trained.data),
        on_long=recipe.on_long,
        parameters=trained.parameters,
        backbone=backbone,
        max_length=recipe.max_length,
        probe_inputs=probe_inputs(trained.data.dev.examples),
        provenance=Provenance(
            created_at=created_at,
            data=_data_record(trained.data, num_long=trained.num_long),
            recipe=evidence.RecipeRecord(settings=recipe.settings(), digest=recipe.digest),
            metrics=tuple(trained.scores.values()),
            test_metrics=() if test is None else tuple(test.values.values()),
            confusion=_confusion_record(trained),
            calibration=calibration,
            teacher=_teacher_record(trained, backbone),
            note=note,
        ),
    )


def probe_inputs(examples: Sequence[Example]) -> tuple[TextInput, ...]:
    """Up to four different inputs, from the shortest to the longest."""
    distinct = sorted({_cut(example) for example in examples}, key=_order)
    last = len(distinct) - 1
    positions = {round(last * part / (NUM_PROBE_INPUTS - 1)) for part in range(NUM_PROBE_INPUTS)}
    return tuple(distinct[position] for position in sorted(positions))


def reads_of(data: TaskData) -> Reads | None:
    """Whether a sequence classification reads texts or pairs; None if the examples have both."""
    if data.kind.head is not HeadKind.SEQUENCE_CLASSIFICATION:
        return None
    examples = (*data.train.examples, *data.dev.examples)
    forms = {Reads.SINGLE if it.text_pair is None else Reads.PAIR for it in examples}
    return forms.pop() if len(forms) == 1 else None


def default_label_of(data: TaskData, recipe: Recipe) -> str | None:
    """The label that means that nothing was found: the recipe's, or the usual one of two."""
    if data.kind is not TaskKind.SINGLE_LABEL:
        return None
    if recipe.default_label is not None or len(data.labels) != 2:
        return recipe.default_label if recipe.default_label in data.labels else None
    ((label, count),) = Counter(data.train.labels(str)).most_common(1)
    return label if count >= LEAST_DEFAULT_SHARE * len(data.train) else None


def _data_record(data: TaskData, *, num_long: tuple[int, int] | None = None) -> evidence.DataRecord:
    num_train_long, num_dev_long = num_long or (None, None)
    return evidence.DataRecord(
        name=data.name,
        train_digest=data.train.digest,
        dev_digest=data.dev.digest,
        num_train=len(data.train),
        num_dev=len(data.dev),
        num_train_long=num_train_long,
        num_dev_long=num_dev_long,
    )


def _teacher_record(trained: TrainedTask, backbone: Backbone) -> evidence.TeacherRecord | None:
    """The agreement with the teacher, and both scores where texts have labels of their own."""
    data, teacher = trained.data, trained.data.teacher
    if not data.train.is_taught:
        return None

    def said_by(example: Example) -> Label:
        return label_of(example.shares, data.kind, teacher)

    held = (data.test or data.dev).examples
    labelled = ExampleSet(examples=tuple(it for it in held if it.has_label))
    as_said = ExampleSet(examples=tuple(replace(it, label=said_by(it)) for it in held))
    agreement, metric = Metric.ACCURACY, Metric.F1_MACRO
    if data.kind is TaskKind.REGRESSION:
        agreement = metric = Metric.SPEARMAN

    def score(examples: ExampleSet, metric: Metric) -> evidence.MetricRecord:
        return evaluate(trained, examples, backbone, (metric,)).values[metric]

    def score_of_teacher() -> evidence.MetricRecord:
        said = map(said_by, labelled.examples)
        answers = [it.names if isinstance(it, LabelSet) else cast("str | float", it) for it in said]
        statistics = statistics_of(data.kind, data.labels, labelled, answers)
        return statistics.scores([metric], labelled, seed=0)[metric]

    return evidence.TeacherRecord(
        name=teacher.name if teacher else data.name,
        digest=teacher.digest if teacher else data.train.digest,
        num_texts=len(data.train) + len(data.dev) + len(data.test or ()),
        seconds=teacher.seconds if teacher else 0,
        agreement=score(as_said, agreement),
        score=score_of_teacher() if len(labelled) else None,
        own_score=score(labelled, metric) if len(labelled) else None,
    )


def _confusion_record(trained: TrainedTask) -> evidence.ConfusionRecord | None:
    """None if texts have no single label, or there are too many cells for a manifest."""
    found = trained.confusion if trained.data.kind is TaskKind.SINGLE_LABEL else None
    if found is None or len(found) > evidence.MAX_CONFUSION_CELLS:
        return None
    # Sorted, so that equal training gives equal content.
    cells = tuple(
        evidence.ConfusionCell(truth=truth, predicted=predicted, count=count)
        for (truth, predicted), count in sorted(found.items())
    )
    return evidence.ConfusionRecord(data_digest=trained.data.dev.digest, cells=cells)


def _cut(example: Example) -> TextInput:
    text = example.text[:MAX_PROBE_CHARS]
    return text if example.text_pair is None else (text, example.text_pair[:MAX_PROBE_CHARS])


def _order(text: TextInput) -> tuple[int, tuple[str, ...]]:
    """By length, then by content, so that equal data gives an equal probe."""
    parts = (text,) if isinstance(text, str) else text
    return sum(map(len, parts)), parts
