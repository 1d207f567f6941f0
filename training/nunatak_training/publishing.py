"""Publishing: a trained task becomes a version in the registry."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime

from pydantic import TypeAdapter, ValidationError

from nunatak_artifact import Draft, Provenance, draft_task, head_record
from nunatak_contract.evidence import (
    MAX_CONFUSION_CELLS,
    ConfusionCell,
    ConfusionRecord,
    DataRecord,
    MetricRecord,
    RecipeRecord,
)
from nunatak_contract.manifest import Note, TaskManifest
from nunatak_model import Backbone, TextInput
from nunatak_registry import Registry
from nunatak_training.data import Example, TaskData
from nunatak_training.errors import UnpublishableError
from nunatak_training.fitting import TrainedTask, branch_spec
from nunatak_training.kinds import TaskKind
from nunatak_training.recipes import Recipe

NUM_PROBE_INPUTS = 4
MAX_PROBE_CHARS = 4096


def publish(
    trained: TrainedTask,
    registry: Registry,
    backbone: Backbone,
    *,
    task: str,
    created_at: datetime,
    note: str = "",
) -> TaskManifest:
    """Publish a trained task as the next version of `task`, or find the version it equals.

    Raises:
        RegistryError: the registry refuses it or cannot be written; nothing is visible then.
    """
    draft = draft_trained(trained, backbone, task=task, created_at=created_at, note=note)
    return registry.publish(draft.manifest, draft.blobs)


def check_publishable(data: TaskData, recipe: Recipe, backbone: Backbone, *, note: str) -> None:
    """Return if a version can be published, as far as can be known before training.

    Raises:
        UnpublishableError: the manifest has no room for the note, the labels or the data's name.
    """
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
            problem = error.errors(include_url=False)[0]
            place = ".".join(map(str, (part, *problem["loc"])))
            raise UnpublishableError(place, problem["msg"]) from error


def draft_trained(
    trained: TrainedTask,
    backbone: Backbone,
    *,
    task: str,
    created_at: datetime,
    note: str = "",
) -> Draft:
    """Describe and serialise a trained task."""
    recipe = trained.recipe
    return draft_task(
        task,
        spec=trained.spec,
        labels=trained.data.labels,
        problem_type=trained.data.kind.problem_type,
        default_label=default_label_of(trained.data, recipe),
        on_long=recipe.on_long,
        parameters=trained.parameters,
        backbone=backbone,
        max_length=recipe.max_length,
        probe_inputs=probe_inputs(trained.data.dev.examples),
        provenance=Provenance(
            created_at=created_at,
            data=_data_record(trained.data, num_long=trained.num_long),
            recipe=RecipeRecord(settings=recipe.settings(), digest=recipe.digest),
            metrics=_metric_records(trained),
            confusion=_confusion_record(trained),
            note=note,
        ),
    )


def probe_inputs(examples: Sequence[Example]) -> tuple[TextInput, ...]:
    """Choose up to four different inputs, from the shortest to the longest."""
    distinct = sorted({_cut(example) for example in examples}, key=_order)
    last = len(distinct) - 1
    positions = {round(last * part / (NUM_PROBE_INPUTS - 1)) for part in range(NUM_PROBE_INPUTS)}
    return tuple(distinct[position] for position in sorted(positions))


def default_label_of(data: TaskData, recipe: Recipe) -> str | None:
    """Return the label that means that nothing was found: the recipe's, or of two the commoner.

    Of two that are equally frequent it is the first.
    """
    if data.kind is not TaskKind.SINGLE_LABEL:
        return None
    if recipe.default_label is not None or len(data.labels) != 2:
        return recipe.default_label
    counts = Counter(data.train.labels(str))
    return max(data.labels, key=lambda label: counts[label])


def _data_record(data: TaskData, *, num_long: tuple[int, int] | None = None) -> DataRecord:
    num_train_long, num_dev_long = num_long or (None, None)
    return DataRecord(
        name=data.name,
        train_digest=data.train.digest,
        dev_digest=data.dev.digest,
        num_train=len(data.train),
        num_dev=len(data.dev),
        num_train_long=num_train_long,
        num_dev_long=num_dev_long,
    )


def _metric_records(trained: TrainedTask) -> tuple[MetricRecord, ...]:
    dev = trained.data.dev
    return tuple(
        MetricRecord(
            name=metric.value,
            value=value,
            interval=trained.intervals[metric],
            data_digest=dev.digest,
            num_examples=len(dev),
        )
        for metric, value in trained.scores.items()
    )


def _confusion_record(trained: TrainedTask) -> ConfusionRecord | None:
    """The matrix, if the task has one that is small enough for a manifest."""
    if trained.confusion is None or len(trained.confusion) > MAX_CONFUSION_CELLS:
        return None
    # Sorted, so that equal training gives equal content.
    cells = tuple(
        ConfusionCell(truth=truth, predicted=predicted, count=count)
        for (truth, predicted), count in sorted(trained.confusion.items())
    )
    return ConfusionRecord(data_digest=trained.data.dev.digest, cells=cells)


def _cut(example: Example) -> TextInput:
    text = example.text[:MAX_PROBE_CHARS]
    return text if example.text_pair is None else (text, example.text_pair[:MAX_PROBE_CHARS])


def _order(text: TextInput) -> tuple[int, tuple[str, ...]]:
    """Sort by length, then by content, so that equal data gives an equal probe."""
    parts = (text,) if isinstance(text, str) else text
    return sum(map(len, parts)), parts
