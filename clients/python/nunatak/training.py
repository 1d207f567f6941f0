"""Training from Python: examples in memory or in files become a published task version."""

# ruff: noqa: PLC0415 - `import nunatak` must not import torch

import os
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

from pydantic import JsonValue

from nunatak.local import LocalTasks, loaded_backbone
from nunatak_client import Inputs, Prediction
from nunatak_client.calls import ShownOptions, in_order
from nunatak_contract.errors import invalid_option, needs_extra
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import DEFAULT_BACKBONE
from nunatak_contract.plain_text import counted
from nunatak_contract.progress import shown_progress
from nunatak_contract.questions import card_of
from nunatak_rows import RowFormat

if TYPE_CHECKING:
    from nunatak_model import Backbone
    from nunatak_training.data import Data, DataWarning
    from nunatak_training.doubts import Doubt
    from nunatak_training.teachers import TeacherChoice

_IMPORTED_BY, _AFTER_TORCH = os.getpid(), "torch" in sys.modules
_FORKED = 0x40
"""Linux' mark of a process that was forked and has started no program since."""


@dataclass(slots=True, kw_only=True)
class Trained:
    """A published task version, ready to predict; a context manager, like `LocalTasks`."""

    manifest: TaskManifest
    """Everything that the registry records of the version."""
    scores: Mapping[str, float]
    """Scores on the dev examples, by metric; the metric that chose the epoch comes first."""
    test_scores: Mapping[str, float] | None
    """Scores on the test examples, if the data has some."""
    _registry: str | Path
    _backbone: "Backbone"
    _tasks: LocalTasks | None = None

    @property
    def reference(self) -> str:
        """The reference of the version, such as `tone/1`."""
        return self.manifest.reference

    def predict(self, inputs: Inputs, **options: Unpack[ShownOptions]) -> Prediction:
        """Ask this version about one input or a list of inputs, as `LocalTasks.predict`.

        Raises:
            MissingExtraError: the extra `server` is not installed.
            NunatakError: an input cannot be answered.
        """
        if self._tasks is None:
            from nunatak_registry import Registry

            registry = Registry.open(self._registry, create=False)
            self._tasks = LocalTasks(registry, self._backbone)
        return self._tasks.predict(self.reference, inputs, **options)

    def close(self) -> None:
        """End the threads that predict, if there are some."""
        if self._tasks is not None:
            self._tasks.close()
            self._tasks = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def train(  # noqa: PLR0913 - the arguments of one training
    task: str,
    data: "Data | Iterable[Inputs]",
    labels: Iterable[object] | None = None,
    *,
    registry: str | Path | None = None,
    promote: str | None = None,
    kind: str | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    pair_column: str | None = None,
    rejected: str | Path | None = None,
    backbone: str | Path = DEFAULT_BACKBONE,
    device: str = "cpu",
    strict: bool = False,
    note: str = "",
    show_progress: bool = True,
    teacher: "TeacherChoice | None" = None,
    **settings: JsonValue,
) -> Trained:
    """Train a task and publish it as a new version; the epoch with the best dev score is kept.

    Args:
        task: the name of the task.
        data: texts (or pairs of texts as tuples) together with `labels`; or rows, as a list of
            mappings, a DataFrame of pandas or polars, a table of Arrow or a data set of
            `datasets`; or a file, a folder or `datasets:NAME`; or any of these by part:
            `{"train": ..., "dev": ..., "test": ...}`.
            Without dev examples, a tenth of the train examples becomes dev.
        labels: one label for each text: a name, a number or a list of names.
        registry: a folder or a database URL, which is made if there is none; absent:
            NUNATAK_REGISTRY, else a folder in the user's data directory.
        promote: an alias that then points at the new version, such as `prod`.
        kind: the kind of task; absent: the first row decides (docs/training.md).
        text_column: the column of the text, if it is not `text`.
        label_column: the column of the label, if it is not `label` or `labels`.
        pair_column: the column of the second text, if it is not `text_pair`.
        rejected: a file of JSON lines for the rows that cannot be used, with the reasons; absent:
            such rows are an error, which names them.
        backbone: `minilm`, an added backbone, a folder or a hub id.
        device: `cpu` or `cuda`.
        strict: whether suspicious data is refused; otherwise it gives a `UserWarning`.
        note: a remark to keep with the version.
        show_progress: whether standard error shows the progress.
        teacher: of `adopt`.
        settings: the method and any setting of method and recipe, by the names that
            `nunatak train --help` lists: `method="lora"`, `rank=4`, `epochs=3`,
            `regularizer={"name": "mixout"}`. Absent: their defaults.

    Raises:
        MissingExtraError: the extra `training` is not installed.
        NunatakError: data, settings or run have an error; nothing is published.
    """
    with needs_extra("training"):
        from nunatak_registry import Registry, default_location
        from nunatak_training.cache import default_cache_folder
        from nunatak_training.kinds import kind_named
        from nunatak_training.report import Report
        from nunatak_training.run_settings import read_settings
        from nunatak_training.train import TrainSettings
        from nunatak_training.train import train as train_task
        from nunatak_training.trunk import DiskTrunkStore
    run = TrainSettings(
        task=task,
        data=_given(data, labels, kind),
        teacher=teacher,
        settings=read_settings(settings),
        kind=kind_named(kind),
        spelt=_spelt(text_column, label_column, pair_column, rejected),
        strict=strict,
        note=note,
        promote=promote,
    )
    loaded = _to_train_on(backbone, device)
    place = registry or default_location()
    with Registry.open(place) as opened, shown_progress(quiet=not show_progress) as progress:
        outcome = train_task(
            run,
            registry=opened,
            backbone=loaded,
            report=Report(task, progress),
            trunks=DiskTrunkStore(),
            checkpoints=default_cache_folder(),
            warn=None if strict else _warn,
        )
        if promote is not None:
            opened.promote(task, promote, outcome.manifest.version)
            for problem in opened.policies.undecided(task):
                warnings.warn(problem, UserWarning, stacklevel=2)
    manifest = outcome.manifest
    return Trained(
        manifest=manifest,
        scores={it.name: it.value for it in manifest.metrics},
        test_scores={it.name: it.value for it in manifest.test_metrics} or None,
        _registry=place,
        _backbone=loaded,
    )


def adopt(  # noqa: PLR0913 - the teacher in all its forms
    task: str,
    texts: "Data | Iterable[Inputs]",
    *,
    teacher: str | None = None,
    teacher_backbone: str | Path | None = None,
    upstream: str | None = None,
    question: Mapping[str, JsonValue] | str | None = None,
    upstream_key: str | Path | None = None,
    upstream_model: str | None = None,
    **options: Any,  # noqa: ANN401 - those of `train`
) -> Trained:
    """Train a task on what a teacher says about texts, and publish it as a new version.

    Args:
        task: the name of the new task.
        texts: texts or pairs, or data as for `train`, whose labels may be absent. Without a
            teacher, rows have the column `probabilities`: a mapping from labels to numbers.
        teacher: a task of the registry: `name`, `name@alias` or `name/3`.
        teacher_backbone: the backbone of that task; absent: the backbone of the new task.
        upstream: the URL of a server of decisions.
        question: the question for `upstream`: a question, a card, or the name of a card.
        upstream_key: a file with the key of `upstream`.
        upstream_model: the model of `upstream` to ask; absent: `jev-latest`.
        options: all other arguments of `train`, such as `registry`, `kind` and `method`.

    Raises:
        MissingExtraError: the extra `training` is not installed.
        NunatakError: teacher, texts, settings or run have an error; nothing is published.
    """
    with needs_extra("training"):
        from nunatak_training.teachers import TeacherChoice
    try:
        asked = question if question is None or isinstance(question, str) else card_of(question)
    except ValueError as error:
        raise invalid_option(f"question: {error}") from error
    choice = TeacherChoice(
        task=teacher,
        backbone=None if teacher_backbone is None else str(teacher_backbone),
        upstream=upstream,
        question=asked,
        key=None if upstream_key is None else Path(upstream_key),
        model=upstream_model,
    )
    return train(task, texts, teacher=choice, **options)


def doubts(  # noqa: PLR0913 - the data in all its forms
    data: "Data | Iterable[Inputs]",
    labels: Iterable[object] | None = None,
    *,
    text_column: str | None = None,
    label_column: str | None = None,
    pair_column: str | None = None,
    rejected: str | Path | None = None,
    backbone: str | Path = DEFAULT_BACKBONE,
    device: str = "cpu",
    max_length: int | None = None,
) -> "tuple[Doubt, ...]":
    """Return the examples whose label is likely wrong, the strongest doubt first.

    The arguments are those of `train`; each example has one label. docs/training.md explains the
    method.

    Raises:
        MissingExtraError: the extra `training` is not installed.
        NunatakError: the examples cannot be used.
    """
    with needs_extra("training"):
        from nunatak_training.doubts import find_doubts
        from nunatak_training.trunk import DiskTrunkStore
    return find_doubts(
        _given(data, labels),
        _to_train_on(backbone, device),
        spelt=_spelt(text_column, label_column, pair_column, rejected),
        max_length=max_length,
        trunks=DiskTrunkStore(),
    )


def _to_train_on(backbone: str | Path, device: str) -> "Backbone":
    loaded = loaded_backbone(backbone, device)
    if os.getpid() != _IMPORTED_BY or (_AFTER_TORCH and _is_forked()):
        from nunatak_model import compute_with

        # The helper threads of torch stay behind at a fork: work for several would wait forever.
        compute_with(1)
    return loaded


def _is_forked() -> bool:
    return bool(int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[6]) & _FORKED)


def _given(data: Any, labels: Iterable[object] | None, kind: str | None = None) -> "Data":  # noqa: ANN401 - checked by the reader
    """Return data as the training package reads it: texts and labels become rows."""
    if labels is None:
        return data
    if isinstance(data, (str, Path, Mapping)):
        raise invalid_option(
            "labels belong to a list of texts; files and parts have a column of labels"
        )
    # Series of pandas, which pairs by the index.
    is_pandas = hasattr(data, "align") and hasattr(labels, "align")
    if is_pandas and not data.index.equals(cast("Any", labels).index):
        raise invalid_option(
            "texts and labels are Series with different indexes; give both one index, or "
            "lists, whose order pairs them"
        )
    texts, named = list(in_order(data)), list(in_order(labels))
    if len(texts) != len(named):
        raise invalid_option(
            f"expected one label for each text, got "
            f"{counted(len(texts), 'text')} and {counted(len(named), 'label')}"
        )
    return [_row(text, label, kind) for text, label in zip(texts, named, strict=True)]


def _spelt(
    text: str | None, label: str | None, pair: str | None, rejected: str | Path | None
) -> RowFormat:
    path = None if rejected is None else Path(rejected)
    return RowFormat(text=text, label=label, pair=pair, rejected=path)


def _row(text: object, label: object, kind: str | None = None) -> dict[str, object]:
    match text:
        case tuple((str() as first, str() as second)):
            row: dict[str, object] = {"text": first, "text_pair": second}
        case _:
            row = {"text": text}
    if hasattr(label, "tolist"):  # an array of numpy or torch
        label = cast("Any", label).tolist()
    if isinstance(label, (set, frozenset)):
        label = sorted(cast("AbstractSet[object]", label), key=str)
    many = kind == "multi-label" if kind else isinstance(label, (list, tuple))
    row["labels" if many else "label"] = [label] if many and isinstance(label, str) else label
    return row


def _warn(found: "Sequence[DataWarning]") -> None:
    for each in found:
        message = f"{each.problem}: {each.found}; {each.problem.advice}"
        # The level of the caller of `nunatak.train`.
        warnings.warn(message, UserWarning, stacklevel=4)
